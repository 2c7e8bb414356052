import pytest

from deploy.models import ROOT
from deploy.properties import parse


@pytest.mark.parametrize(
    "name", ["config.properties", "config.production.properties", "config.large-bodies.properties"]
)
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


# What config.properties does not have in common with the others; everything else says the same thing once.
DIFFERENCES = {
    "config.production.properties": {
        "disable_token_authorization",
        "token_expiration_min",
        "enable_model_api",
        "load_models",
        "models",
    },
    "config.large-bodies.properties": {"max_request_size", "job_queue_size", "vmargs"},
}


@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_config_differs_from_that_of_development_in_what_it_is_for(name: str) -> None:
    development, other = (parse((ROOT / each).read_text()) for each in ("config.properties", name))
    assert {key for key in development | other if development.get(key) != other.get(key)} == DIFFERENCES[name]
