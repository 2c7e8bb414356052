"""deploy/security: both documents are those of the installed jar and valid, and the reasons in the VEX hold for it."""

import json
import zipfile

import yaml

from deploy.models import ROOT
from docs.vex import FOLDER, JAR, make_documents

# The required fields in the schemas of CycloneDX 1.6 and OpenVEX 0.2.0, of a statement also by its status.
SBOM, COMPONENT = {"bomFormat", "specVersion", "version", "metadata"}, {"type", "name", "bom-ref", "purl"}
VEX, STATEMENT = {"@context", "@id", "author", "timestamp", "version"}, {"vulnerability", "products", "status"}
BY_STATUS = {"not_affected": {"justification", "impact_statement"}, "affected": {"action_statement"}, "fixed": set()}


def test_documents_are_those_of_the_installed_jar_and_valid() -> None:
    made = make_documents()
    read = {name: json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in made}
    assert read == made, "python docs/vex.py writes them again"
    sbom, vex = read.values()
    assert (sbom.keys() >= SBOM, vex.keys() >= VEX, sbom["specVersion"]) == (True, True, "1.6")
    assert all(component.keys() >= COMPONENT for component in sbom["components"])
    assert all(each.keys() >= STATEMENT | BY_STATUS[each["status"]] for each in vex["statements"])


def test_reasons_of_the_vex_hold_for_the_jar() -> None:
    groups = yaml.safe_load((FOLDER / "frontend.yaml").read_text(encoding="utf-8"))["statements"]
    with zipfile.ZipFile(JAR) as jar:
        members = {member: jar.read(member) for member in jar.namelist()}
    # TorchServe's classes and the logging configurations name the used classes; the libraries contain all names.
    own = [content for member, content in members.items() if member.startswith(("org/pytorch/serve/", "log4j2"))]
    used, there = b"".join([*own, (ROOT / "deploy" / "log4j2.xml").read_bytes()]), b"".join(members.values())
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for group in groups:
        unused = [name.encode() for name in group.get("unused", [])]
        assert [name for name in unused if name not in used and name.strip(b"<") in there] == unused
        assert all(name.removeprefix("CVE-") in page for name in group["advisories"])
        assert not {*group.get("absent", [])} & members.keys()
        assert (ROOT / group.get("test", "tests")).exists()
