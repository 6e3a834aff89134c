"""Tests that the OpenAPI document is valid and complete, and that the running server keeps it."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from models.errors import ErrorCode
from resolvers.agent_operations import AGENT_OPERATIONS
from resolvers.registry import OPERATIONS
from tests.support.places import OPENAPI
from tests.support.world import World

pytestmark = pytest.mark.anyio

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,negative_data_rejection,unsupported_method"
)


async def test_the_server_does_what_the_document_says(world: World, tmp_path: Path) -> None:
    """Schemathesis makes valid and invalid requests from the document. Each response has a status, a content type and
    a body that the document names. Invalid input is refused, and nothing causes a fault of the server.
    """
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")),
        *("run", f"{world.url}/api/openapi.json", "--checks", CHECKS, "--max-examples", "3", "--seed", "7"),
        *("--phases", "examples,coverage,fuzzing", "--header", f"Authorization: Bearer {world.keys['acme-admin']}"),
        *("--generation-deterministic", "--no-color", "--suppress-health-check", "all"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    assert f"Tested: {len(OPENAPI['paths'])}" in out.decode()


def test_every_method_is_there_with_its_input_answer_and_errors() -> None:
    """The document has exactly the methods that the server has, each with its summary and its statuses."""
    methods: list[Any] = [*OPERATIONS, *AGENT_OPERATIONS]
    assert OPENAPI["openapi"] == "3.1.0"
    assert sorted(OPENAPI["paths"]) == sorted(method.path for method in methods)
    ids = [item["post"]["operationId"] for item in OPENAPI["paths"].values()]
    assert len(ids) == len(set(ids)) == len(methods)
    for path, item in OPENAPI["paths"].items():
        assert set(item) == {"post"}, path
        assert item["post"]["summary"], path
        assert {"200", "400", "401", "403", "404", "409", "413", "415", "429", "500", "503"} <= set(
            item["post"]["responses"]
        )
    codes = OPENAPI["components"]["schemas"]["ErrorCode"]["enum"]
    assert codes == [code.value for code in ErrorCode]


def test_it_is_open_api_3_1() -> None:
    """Every reference has a target, every schema is JSON Schema 2020-12, and all names are allowed by the standard."""
    import jsonschema_rs

    references: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            references.extend(value for key, value in node.items() if key == "$ref")
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(OPENAPI)
    assert references
    for reference in references:
        target: Any = OPENAPI
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
    for name, schema in OPENAPI["components"]["schemas"].items():
        assert name.replace("-", "_").replace(".", "_").isidentifier(), name
        jsonschema_rs.meta.validate(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"})
        if schema.get("type") == "object" and name.endswith("Input"):
            assert schema["additionalProperties"] is False, name
    values = OPENAPI["components"]["schemas"]["PutSecretInput"]["properties"]["value"]
    assert values["writeOnly"] is True
