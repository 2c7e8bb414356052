"""The files of the page at `/` and of `/docs`, and the headers with which a browser may use them.

`/` asks /summary for the models, `/docs` shows /openapi.json; both need no network.
"""

from pathlib import Path

PAGE = Path(__file__).parents[1] / "gateway" / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# The page loads only its own files, connects only to this server, and cannot be framed. A preview of a photograph is a
# blob. Trusted types: a model's text cannot become markup.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FRESH = {**HEADERS, "Cache-Control": "no-store"}  # of data
FILE = {**HEADERS, "Cache-Control": "no-cache"}
# Empty without the folder, which is a part that a fork may remove.
FILES = {f"/page/{path.name}": path for path in PAGE.glob("*.*") if path.suffix in TYPES}
FILES |= {path: PAGE / name for path, name in (("/", "index.html"), ("/docs", "docs.html")) if f"/page/{name}" in FILES}
