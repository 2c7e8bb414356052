"""The options of a node in a container, whose defaults come from variables."""

from pathlib import Path

from deploy.container.settings import make_parser


def test_variable_is_the_default_of_its_option() -> None:
    parser = make_parser({"NODE_CONFIG": "my.properties", "NODE_PORT": "9085", "NODE_FORWARD_HEADERS": "X-A,X-B"})
    options = parser.parse_args(["--notice-s", "2"])
    assert (options.config, options.port, options.forward_headers) == (Path("my.properties"), 9085, ("X-A", "X-B"))
    assert (options.model_store, options.notice_s) == (None, 2.0)
    assert parser.parse_args(["--port", "1"]).port == 1
