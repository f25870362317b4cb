"""infra/provider: writes sdk.py, the Python SDK, from the same tables as the schema: `python -m infra.provider.sdkgen > FILE`.

A test renders it again and compares, so a field of a resource cannot be missing from the SDK. It does what Pulumi's own generator does
(which needs the CLI), for the few shapes that these resources have.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence

from infra.provider.resources import KINDS, PACKAGE
from infra.provider.resources.fields import Field, Kind
from infra.provider.resources.functions import FUNCTIONS, Function
from infra.provider.schema import CONFIG, describe

HEAD = '''"""infra/provider: the Python SDK of the package runpodv2. Written by sdkgen.py from the resources' tables: change those.

Names are REST v2's in snake_case. What an omitted argument means stands with it; a value that only RunPod knows is an output.
"""

# ruff: noqa: UP007, UP045
from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union, cast

import pulumi
import pulumi.runtime
'''
INIT = [
    "    def __init__(",
    "        self,",
    "        resource_name: str,",
    "        opts: Optional[pulumi.ResourceOptions] = None,",
    "        *,",
]
INIT_DOC = [
    "    ) -> None:",
    '        """',
    "        :param resource_name: Its name in Pulumi.",
    "        :param opts: Options of the resource.",
]
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m.group(1).lower(), name)


def type_name(f: Field, owner: str) -> str:
    return f.named or owner + f.name[0].upper() + f.name[1:]


def input_type(f: Field, owner: str) -> str:
    """The annotation of an argument."""
    if f.type in SCALARS:
        return f"pulumi.Input[{SCALARS[f.type]}]"
    if f.type == "strings":
        return "pulumi.Input[Sequence[pulumi.Input[str]]]"
    if f.type == "map":
        return "pulumi.Input[Mapping[str, pulumi.Input[str]]]"
    one = f"Union[{type_name(f, owner)}Args, Mapping[str, Any]]"
    return f"pulumi.Input[{one}]" if f.type == "object" else f"pulumi.Input[Sequence[pulumi.Input[{one}]]]"


def output_type(f: Field, owner: str) -> str:
    """The annotation of a result."""
    if f.type in SCALARS:
        return SCALARS[f.type]
    if f.type == "strings":
        return "Sequence[str]"
    if f.type == "map":
        return "Mapping[str, str]"
    return type_name(f, owner) if f.type == "object" else f"Sequence[{type_name(f, owner)}]"


def optional(text: str, f: Field) -> str:
    return text if f.required else f"Optional[{text}]"


def doc(text: str, indent: str) -> list[str]:
    """A docstring, wrapped."""
    lines = textwrap.wrap(text, 130 - len(indent))
    if len(lines) == 1:
        return [f'{indent}"""{lines[0]}"""']
    return [f'{indent}"""{lines[0]}', *(indent + line for line in lines[1:]), f'{indent}"""']


def parameters(fields: Sequence[Field]) -> list[str]:
    lines = []
    for f in fields:
        wrapped = textwrap.wrap(f":param {snake(f.name)}: {describe(f)}", 122)
        lines += ["        " + line if i == 0 else "            " + line for i, line in enumerate(wrapped)]
    return lines


def arguments(fields: Sequence[Field], owner: str) -> list[str]:
    ordered = sorted(fields, key=lambda f: not f.required)
    return [f"        {snake(f.name)}: {optional(input_type(f, owner), f)}{'' if f.required else ' = None'}," for f in ordered]


def getter(f: Field, annotation: str) -> list[str]:
    name = snake(f.name)
    return [
        "",
        "    @builtins.property",
        f'    @pulumi.getter(name="{f.name}")',
        f"    def {name}(self) -> {annotation}:",
        *doc(describe(f), "        "),
        f'        return pulumi.get(self, "{name}")  # type: ignore[no-any-return]',
    ]


def assignments(fields: Sequence[Field]) -> list[str]:
    """What a constructor does with its arguments."""
    lines: list[str] = []
    for f in sorted(fields, key=lambda f: not f.required):
        attribute = snake(f.name)
        if f.required:
            lines.append(f'        pulumi.set(self, "{attribute}", {attribute})')
        else:
            lines += [f"        if {attribute} is not None:", f'            pulumi.set(self, "{attribute}", {attribute})']
    return lines


def args_class(name: str, fields: Sequence[Field], owner: str, text: str) -> list[str]:
    lines = ["", "", "@pulumi.input_type", f"class {name}:", *doc(text, "    "), ""]
    lines += ["    def __init__(", "        self,", "        *,", *arguments(fields, owner), "    ) -> None:"]
    lines += ['        """', *parameters(fields), '        """']
    lines += assignments(fields)
    for f in fields:
        lines += getter(f, optional(input_type(f, owner), f))
    return lines


def result_class(name: str, fields: Sequence[Field], owner: str, text: str) -> list[str]:
    lines = ["", "", "@pulumi.output_type", f"class {name}(dict[str, Any]):", *doc(text, "    "), ""]
    lines += ["    def __init__(", "        self,", "        *,"]
    for f in sorted(fields, key=lambda f: not f.required):
        lines.append(f"        {snake(f.name)}: {optional(output_type(f, owner), f)}{'' if f.required else ' = None'},")
    lines.append("    ) -> None:")
    lines += assignments(fields)
    for f in fields:
        lines += getter(f, optional(output_type(f, owner), f))
    return lines


def nested(fields: Sequence[Field], owner: str, seen: set[str], *, inputs: bool) -> list[str]:
    """The classes of objects inside of others, deepest first."""
    lines: list[str] = []
    for f in fields:
        if not f.fields:
            continue
        name = type_name(f, owner)
        lines += nested(f.fields, name, seen, inputs=inputs)
        if inputs and f"{name}Args" not in seen:
            seen.add(f"{name}Args")
            lines += args_class(f"{name}Args", f.fields, name, f.doc)
        if name not in seen:
            seen.add(name)
            lines += result_class(name, f.fields, name, f.doc)
    return lines


def resource_class(kind: Kind) -> list[str]:
    title = kind.title
    lines = args_class(f"{title}Args", kind.inputs, title, f"The arguments of {title}.")
    lines += ["", "", f"class {title}(pulumi.CustomResource):", *doc(kind.doc, "    "), ""]
    lines += INIT
    lines += arguments(kind.inputs, title)
    lines += INIT_DOC
    lines += [*parameters(kind.inputs), '        """']
    lines += [f"        props = {title}Args.__new__({title}Args)"]
    for f in kind.inputs:
        value = snake(f.name)
        value = f"pulumi.Output.secret({value})" if f.secret else value
        lines.append(f'        props.__dict__["{snake(f.name)}"] = {value}')
    lines += [f'        props.__dict__["{snake(f.name)}"] = None' for f in kind.computed]
    if kind.secret_inputs:
        names = str(list(kind.secret_inputs)).replace("'", '"')
        lines.append(f"        secret = pulumi.ResourceOptions(additional_secret_outputs={names})")
        lines.append("        opts = pulumi.ResourceOptions.merge(secret, opts)")
    lines.append(f'        super().__init__("{kind.token}", resource_name, cast("Any", props), opts)')
    lines += [
        "",
        "    @staticmethod",
        f"    def get(resource_name: str, id: pulumi.Input[str], opts: Optional[pulumi.ResourceOptions] = None) -> {title}:",
        '        """One that exists, by its RunPod id; read, never changed."""',
        "        opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(id=id))",
        f"        props = {title}Args.__new__({title}Args)",
        *[f'        props.__dict__["{snake(f.name)}"] = None' for f in (*kind.inputs, *kind.computed)],
        f"        found = {title}.__new__({title})",
        f'        pulumi.CustomResource.__init__(found, "{kind.token}", resource_name, cast("Any", props), opts)',
        "        return found",
    ]
    for f in (*kind.inputs, *kind.computed):
        always = f.required or f in kind.computed
        lines += getter(f, f"pulumi.Output[{output_type(f, title) if always else f'Optional[{output_type(f, title)}]'}]")
    return lines


def provider_class() -> list[str]:
    lines = ["", "", "class Provider(pulumi.ProviderResource):"]
    text = "One account. Without one, the default provider is used: configuration runpodv2:apiKey, runpodv2:baseUrl, or the environment."
    lines += [*doc(text, "    "), "", *INIT]
    lines += arguments(CONFIG, "Provider")
    lines += INIT_DOC
    lines += [*parameters(CONFIG), '        """', "        props: dict[str, Any] = {"]
    for f in CONFIG:
        value = snake(f.name)
        value = f"None if {value} is None else pulumi.Output.secret({value})" if f.secret else value
        lines.append(f'            "{f.name}": {value},')
    lines += ["        }", f'        super().__init__("{PACKAGE}", resource_name, props, opts)']
    return lines


def function_code(function: Function) -> list[str]:
    name = function.token.rsplit(":", 1)[-1]
    title = name[0].upper() + name[1:]
    owner = name.removeprefix("get")
    lines = result_class(f"{title}Result", function.outputs, owner, f"What {snake(name)} found.")
    ordered = sorted(function.inputs, key=lambda f: not f.required)
    for suffix, returns in (("", f"{title}Result"), ("_output", f"pulumi.Output[{title}Result]")):
        lines += ["", "", f"def {snake(name)}{suffix}("]
        for f in ordered:
            kind = SCALARS[f.type] if not suffix else f"pulumi.Input[{SCALARS[f.type]}]"
            lines.append(f"    {snake(f.name)}: {optional(kind, f)}{'' if f.required else ' = None'},")
        options = "pulumi.InvokeOptions" if not suffix else "Union[pulumi.InvokeOptions, pulumi.InvokeOutputOptions]"
        lines += [f"    opts: Optional[{options}] = None,", f") -> {returns}:"]
        what = f"{function.doc} Needs an API key, in a preview too."
        first, *more = textwrap.wrap(what, 122)
        lines += ['    """' + first, *("    " + line for line in more), "", *(line[4:] for line in parameters(function.inputs)), '    """']
        lines.append("    args: dict[str, Any] = {")
        lines += [f'        "{f.name}": {snake(f.name)},' for f in function.inputs]
        lines.append("    }")
        if suffix:
            lines.append(f'    return pulumi.runtime.invoke_output("{function.token}", args, opts=opts, typ={title}Result)')
        else:
            lines.append(f'    found = pulumi.runtime.invoke("{function.token}", args, opts=opts, typ={title}Result)')
            lines.append(f"    return cast({title}Result, found.value)")
    return lines


def render() -> str:
    """The text of sdk.py."""
    seen: set[str] = set()
    lines = HEAD.rstrip().split("\n")
    for kind in KINDS.values():
        lines += nested(kind.inputs, kind.title, seen, inputs=True)
    for function in FUNCTIONS.values():
        owner = function.token.rsplit(":", 1)[-1].removeprefix("get")
        lines += nested(function.outputs, owner, seen, inputs=False)
    lines += provider_class()
    for kind in KINDS.values():
        lines += resource_class(kind)
    for function in FUNCTIONS.values():
        lines += function_code(function)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
