"""The table of float operators agrees with the ONNX standard."""

import onnx

from lingeronnx.ir import float_ops
from tests.each import check_each


def test_entries_are_of_the_standard():
    """An entry states the first version and the older forms as the standard has them."""
    schemas = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            schemas.setdefault(schema.name, {})[schema.since_version] = schema

    def check(name):
        op, versions = float_ops.OPERATORS[name], schemas[name]
        assert op.since_opset == (min(versions) if min(versions) > 13 else 1)
        if op.attributes_to_inputs is not None:
            attributes, version = op.attributes_to_inputs
            older = versions[max(v for v in versions if v < version)]
            assert set(attributes) <= set(older.attributes)
            assert not set(attributes) & set(versions[version].attributes)
            inputs = versions[version].inputs[1 : 1 + len(attributes)]
            assert tuple(value.name for value in inputs) == attributes
        if op.has_legacy_broadcast:
            assert "broadcast" in versions[max(v for v in versions if v < 7)].attributes
            assert "broadcast" not in versions[7].attributes

    check_each(check, float_ops.OPERATORS)
