from google.protobuf import text_format
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, strategies

from dlmc.package.pbtxt import quoted


@given(strategies.text())
def test_a_text_is_read_back_and_stays_on_its_line(text):
    literal = quoted(text)
    assert literal.isascii()
    assert literal.isprintable()
    assert text_format.Parse(f"value: {literal}", StringValue()).value == text
