import pytest

from dlmc_runtime.serve.settings import Settings, is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_addresses_are_reachable_from_here_alone(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "fe80::1", "192.168.0.1", "example.org", ""])
def test_other_addresses_are_not(host):
    assert not is_loopback(host)


def test_settings_do_not_show_their_keys():
    assert "topsecret" not in repr(Settings(api_keys=("topsecret",)))
