"""Writes the SBOM (CycloneDX 1.6) and the VEX (OpenVEX 0.2.0) of TorchServe's frontend, Java and Envoy.

frontend.yaml, ts/frontend/model-server.jar, wheels -> frontend.cdx.json, frontend.openvex.json
"""

import json
import re
import zipfile
from hashlib import sha256
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "security"
JAR = Path(str(distribution("torchserve").locate_file("ts/frontend/model-server.jar")))


def find_components(jar: zipfile.ZipFile, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the components; a KeyError or ValueError names one that the jar does not contain."""
    found = {}
    for entry in entries:
        member, purls, content = entry["member"], [entry["purl"]], jar.read(entry["member"]).decode("latin-1")
        if "pattern" in entry:
            purls = [entry["purl"].format(*match.groups()) for match in re.finditer(entry["pattern"], content)]
            method = {"technique": "binary-analysis", "confidence": 1, "value": f"written in {member}"}
        else:
            method = {"technique": "source-code-analysis", "confidence": 0.7, "value": f"{entry['declared']} {member}"}
        if not purls:
            raise ValueError(f"no version in {member}")
        identity = {"field": "version", "confidence": method["confidence"], "methods": [method]}
        for purl in purls:
            group, name, version = re.split("[/@]", purl.removeprefix("pkg:maven/"))
            part = {"type": "library", "bom-ref": purl, "group": group, "name": name, "version": version, "purl": purl}
            found[purl] = {**part, "evidence": {"identity": [identity], "occurrences": [{"location": member}]}}
    return [found[purl] for purl in sorted(found)]


def find_programs(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the components that are programs in wheels; only a wheel's file, or its own version, states theirs."""
    found = []
    for entry in entries:
        wheel, location = distribution(entry["wheel"]), entry["member"]
        version = wheel.version
        if "pattern" in entry:
            version = re.findall(entry["pattern"], Path(str(wheel.locate_file(location))).read_text())[0]
        purl, cpe = entry["purl"].format(version), f"cpe:2.3:a:{entry['cpe']}:{version}:*:*:*:*:*:*:*"
        *_, name = purl.partition("@")[0].split("/")
        part = {"type": "application", "bom-ref": purl, "name": name, "version": version, "purl": purl, "cpe": cpe}
        occurrences = [{"location": f"{wheel.name} {wheel.version}: {location}"}]
        found.append({**part, "evidence": {"occurrences": occurrences}})
    return found


def make_statements(groups: list[dict[str, Any]], purls: list[str]) -> list[dict[str, Any]]:
    """Return an OpenVEX statement for each advisory of each group."""
    made = []
    for group in groups:
        parts = [{"@id": purl} for name in group["of"] for purl in purls if purl.partition("/")[2].startswith(name)]
        if len(parts) < len(group["of"]):
            raise ValueError(f"{group['of']}: the SBOM does not contain all of them")
        kept = ("status", "justification", "action_statement")
        statement: dict[str, Any] = {name: group[name] for name in kept if name in group}
        words = "impact_statement" if group["status"] == "not_affected" else "status_notes"
        statement[words] = f"{group['impact']} Shown by {group['test']}." if "test" in group else group["impact"]
        statement["products"] = [{"@id": "pkg:generic/torchserve-batching", "subcomponents": parts}]
        for name, title in group["advisories"].items():
            made.append({"vulnerability": {"name": name, "description": title}, **statement})
    return made


def make_documents() -> dict[str, dict[str, Any]]:
    data = yaml.safe_load((FOLDER / "frontend.yaml").read_text(encoding="utf-8"))
    sbom, vex = (data[name] for name in ("frontend.cdx.json", "frontend.openvex.json"))
    sbom["metadata"]["component"]["hashes"] = [{"alg": "SHA-256", "content": sha256(JAR.read_bytes()).hexdigest()}]
    with zipfile.ZipFile(JAR) as jar:
        sbom["components"] = find_components(jar, data["components"]) + find_programs(data["programs"])
    vex["statements"] = make_statements(data["statements"], [each["purl"] for each in sbom["components"]])
    return {"frontend.cdx.json": sbom, "frontend.openvex.json": vex}


if __name__ == "__main__":
    for name, document in make_documents().items():
        (FOLDER / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
