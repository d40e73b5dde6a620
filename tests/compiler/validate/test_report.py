from dlmc.validate.report import Report, Row


def _row(*, ok):
    return Row("entropy", 1, 0.0, 1e-3, ok, "")


def test_one_disagreement_is_enough():
    agreeing = Report("b", "onnxruntime-cpu", "torch", 1, 1, (_row(ok=True),))
    assert agreeing.ok
    assert not Report("b", "t", "torch", 1, 1, (_row(ok=True), _row(ok=False))).ok
