"""The commands that print or export what the code declares: ``bcd schema`` and ``bcd settings``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.failure import fail
from settings import Settings

_ROOT = Path(__file__).parent.parent


def schema(
    check: Annotated[bool, typer.Option("--check", help="Only tell whether the files are up to date.")] = False,
) -> None:
    """Export the GraphQL schema to schema/schema.graphql and the OpenAPI document to docs/openapi.json."""
    from doors import openapi
    from resolvers.root import schema as strawberry_schema

    documents = {
        _ROOT / "schema" / "schema.graphql": strawberry_schema.as_str().rstrip() + "\n",
        _ROOT / "docs" / "openapi.json": json.dumps(openapi.document(), indent=1, ensure_ascii=False) + "\n",
    }
    for path, content in documents.items():
        current = path.read_text() if path.exists() else ""
        if check and current != content:
            fail(f"{path} is not up to date: run `bcd schema`")
        if not check and current != content:
            path.write_text(content)
        print(f"{path.relative_to(_ROOT)} is up to date.")


def settings() -> None:
    """Print every setting as the table of the README."""
    print("| variable | default | meaning |\n|---|---|---|")
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None or name == "console_dir" else f"`{field.default}`"
        print(f"| `BC_{name.upper()}` | {default} | {field.description} |")
