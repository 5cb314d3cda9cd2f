"""Damage of the kinds that legacy graphs have, done at random to a right graph.

Each function changes the model in place, by choices of `rng` (random.Random), and returns whether
it found something to damage. `LOSING` are those after which there may be more than one answer, so
that a repair may refuse.
"""

from onnx import TensorProto, helper

INTEGERS = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32)


def _dequants(model):
    return [n for n in model.graph.node if n.op_type == "Dequant"]


def _quantized(node):
    return node.domain in ("thinker", "linger") and node.op_type not in ("Quant", "Dequant")


def _fresh(model, base):
    taken = {name for n in model.graph.node for name in (*n.input, *n.output)}
    taken |= {n.name for n in model.graph.node}
    return next(f"{base}{i}" for i in range(len(taken) + 1) if f"{base}{i}" not in taken)


def _insert(model, before, node):
    place = next(i for i, other in enumerate(model.graph.node) if other is before)
    model.graph.node.insert(place, node)


def _outputs(model):
    return {v.name for v in model.graph.output}


def remove_dequant(model, rng):
    """Take out a Dequant: its readers, or the graph output it wrote, get the integers."""
    if not _dequants(model):
        return False
    gone = rng.choice(_dequants(model))
    source, result = gone.input[0], gone.output[0]
    makers = [n for n in model.graph.node if source in n.output]
    if result in _outputs(model) and (source in _outputs(model) or not makers):
        return False
    model.graph.node.remove(gone)
    if result in _outputs(model):
        makers[0].output[list(makers[0].output).index(source)] = result
        source, result = result, source
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == result:
                node.input[index] = source
    return True


def wrong_scale(model, rng):
    """Give a Dequant another scale, or none."""
    if not _dequants(model):
        return False
    node = rng.choice(_dequants(model))
    if rng.random() < 0.2:
        del node.attribute[:]
        return True
    for attribute in node.attribute:
        if attribute.name == "scale_o":
            attribute.f *= rng.choice([0.25, 2.0, 64.0, -1.0, 0.0])
    return True


def extra_dequant(model, rng):
    """Put a Dequant before an integer operator."""
    made = {
        name
        for n in model.graph.node
        for name in n.output
        if n.op_type not in ("Constant", "Quant")
    }
    places = [n for n in model.graph.node if _quantized(n) and n.input and n.input[0] in made]
    if not places:
        return False
    node = rng.choice(places)
    name = _fresh(model, "extra")
    scale = rng.choice([1.0, 16.0, 64.0])
    _insert(
        model,
        node,
        helper.make_node(
            "Dequant", [node.input[0]], [name], name=f"D{name}", domain="thinker", scale_o=scale
        ),
    )
    node.input[0] = name
    return True


def double_dequant(model, rng):
    """Put a second Dequant behind one."""
    inner = [n for n in _dequants(model) if n.output[0] not in _outputs(model)]
    readers = [n for n in model.graph.node if any(d.output[0] in n.input for d in inner)]
    if not readers:
        return False
    node = rng.choice(readers)
    names = {d.output[0] for d in inner}
    index = next(i for i, name in enumerate(node.input) if name in names)
    name = _fresh(model, "double")
    _insert(
        model,
        node,
        helper.make_node(
            "Dequant",
            [node.input[index]],
            [name],
            name=f"D{name}",
            domain="thinker",
            scale_o=rng.choice([8.0, 32.0]),
        ),
    )
    node.input[index] = name
    return True


def duplicate_dequant(model, rng):
    """Write a Dequant twice, under the same names."""
    if not _dequants(model):
        return False
    node = rng.choice(_dequants(model))
    model.graph.node.append(node)
    return True


def add_identity(model, rng):
    """Put an Identity on an edge, or before a graph output."""
    made = {name for n in model.graph.node for name in n.output if n.op_type != "Constant"} - {""}
    readers = [n for n in model.graph.node if any(name in made for name in n.input)]
    if not readers:
        return False
    node = rng.choice(readers)
    index = rng.choice([i for i, name in enumerate(node.input) if name in made])
    name = _fresh(model, "same")
    _insert(model, node, helper.make_node("Identity", [node.input[index]], [name], name=f"I{name}"))
    node.input[index] = name
    return True


def identity_at_output(model, rng):
    """Let an Identity write a graph output."""
    output = rng.choice(list(model.graph.output)).name
    name = _fresh(model, "before")
    maker = next(n for n in model.graph.node if output in n.output)
    for node in model.graph.node:
        for index, given in enumerate(node.input):
            if given == output:
                node.input[index] = name
    maker.output[list(maker.output).index(output)] = name
    model.graph.node.append(helper.make_node("Identity", [name], [output], name=f"I{name}"))
    return True


def shuffle(model, rng):
    """Put the nodes in any order."""
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return True


def same_names(model, rng):
    """Give two nodes one name."""
    first, second = rng.sample(list(model.graph.node), 2)
    second.name = first.name
    return True


def wrong_output_type(model, rng):
    """Declare a float graph output as int8."""
    output = rng.choice(list(model.graph.output))
    if output.type.tensor_type.elem_type != TensorProto.FLOAT:
        return False
    output.type.tensor_type.elem_type = TensorProto.INT8
    return True


def wrong_input_type(model, rng):
    """Declare an input that a Quant reads as int8."""
    read = {n.input[0] for n in model.graph.node if n.op_type == "Quant"}
    places = [v for v in model.graph.input if v.name in read]
    if not places:
        return False
    rng.choice(places).type.tensor_type.elem_type = TensorProto.INT8
    return True


def add_stale_value_info(model, rng):
    """Note wrong types, wrong shapes and tensors that are not there."""
    notes = model.graph.value_info
    notes.append(helper.make_tensor_value_info("gone", TensorProto.FLOAT, [3]))
    for note in rng.sample(list(notes), min(3, len(notes))):
        note.type.tensor_type.elem_type = rng.choice([TensorProto.FLOAT, TensorProto.INT8])
        if rng.random() < 0.5:
            note.type.tensor_type.shape.dim.add().dim_value = 7
    return True


def break_edge(model, rng):
    """Let the readers of a tensor read a name that nobody writes."""
    made = {
        name for n in model.graph.node for name in n.output if n.op_type != "Constant"
    } - _outputs(model)
    edges = sorted({name for n in model.graph.node for name in n.input if name in made})
    if not edges:
        return False
    lost = rng.choice(edges)
    name = _fresh(model, "lost")
    for node in model.graph.node:
        for index, given in enumerate(node.input):
            if given == lost:
                node.input[index] = name
    return True


DAMAGES = (
    remove_dequant,
    wrong_scale,
    extra_dequant,
    double_dequant,
    duplicate_dequant,
    add_identity,
    identity_at_output,
    shuffle,
    same_names,
    wrong_output_type,
    wrong_input_type,
    add_stale_value_info,
    break_edge,
)
LOSING = (break_edge,)
