import pytest

from deploy.models import ROOT
from deploy.server import Settings


def test_settings_are_read_from_the_committed_file() -> None:
    settings = Settings.read(ROOT / "config.properties")
    assert settings == Settings(
        "http://127.0.0.1:8080", "http://127.0.0.1:8081", "http://127.0.0.1:8082", "model_store"
    )


@pytest.mark.parametrize("name", ["config.properties", "config.production.properties"])
def test_config_listens_on_loopback_and_explains_every_setting(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith(("#", " ")))
    for key in ("inference_address", "management_address", "metrics_address"):
        assert settings[key].startswith("http://127.0.0.1:")
    assert {settings[f"grpc_{api}_address"] for api in ("inference", "management")} == {"127.0.0.1"}
    assert settings["metrics_mode"] == "prometheus"
    assert settings["install_py_dep_per_model"] == "false"
    is_production = "production" in name
    assert settings["disable_token_authorization"] == ("false" if is_production else "true")
    assert settings["enable_model_api"] == ("false" if is_production else "true")
    for paragraph in "\n".join(lines).split("\n\n"):
        assert paragraph.startswith("#"), f"without a reason: {paragraph}"
