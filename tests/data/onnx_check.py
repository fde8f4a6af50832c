"""Runs models that Mixtape wrote as ONNX, and compares their outputs with Mixtape's.

usage: onnx_check.py FOLDER    NAME.onnx beside NAME.0.safetensors, NAME.1.safetensors, ... with its inputs and outputs;
writes the problems to FOLDER/problems, and exits 1 where there are any

onnxruntime has few kernels for bf16 on the CPU. So a model with bf16 is run with each node in f32, between casts of its inputs
from bf16 and of its outputs to bf16: the same values at the same places, of sums that are rounded once."""
import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": ml_dtypes.bfloat16, "I64": "i8", "I32": "i4", "BOOL": "?"}
TOLERANCE = {"f8": 1e-6, "f4": 2e-5, "f2": 5e-3, "bf16": 4e-2}  # of the largest output, in the coarsest dtype of the model


def load(path: Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            tensors[name] = np.frombuffer(raw[8 + size + begin:8 + size + end], DTYPES[t["dtype"]]).reshape(t["shape"])
    return tensors


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    types = {v.name: v.type.tensor_type.elem_type for v in [*graph.value_info, *graph.input, *graph.output]}
    return types | {t.name: t.data_type for t in graph.initializer}


def in_f32(model: onnx.ModelProto, types: dict[str, int]) -> onnx.ModelProto:
    """The model with each node of bf16 between casts."""
    nodes, bf16 = [], TensorProto.BFLOAT16
    for node in model.graph.node:
        after = []
        if node.op_type != "Cast":
            for i, name in enumerate(node.input):
                if types.get(name) == bf16:
                    node.input[i] = f"{name}@{len(nodes)}"
                    nodes.append(helper.make_node("Cast", [name], [node.input[i]], to=TensorProto.FLOAT))
            for i, name in enumerate(node.output):
                if types.get(name) == bf16:
                    node.output[i] = name + "@sum"
                    after.append(helper.make_node("Cast", [node.output[i]], [name], to=bf16))
        nodes += [node, *after]
    for value in model.graph.input:  # NumPy has no bf16 that onnxruntime takes
        if value.type.tensor_type.elem_type == bf16:
            nodes.insert(0, helper.make_node("Cast", [value.name + "@in"], [value.name], to=bf16))
            value.name += "@in"
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for value in model.graph.output:
        if value.type.tensor_type.elem_type == bf16:
            nodes.append(helper.make_node("Cast", [value.name], [value.name + "@out"], to=TensorProto.FLOAT))
            value.name += "@out"
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def check(path: Path) -> str:
    """The problem of a model, or nothing."""
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    types = types_of(model)
    coarsest = "f4"
    for dtype, name in ((TensorProto.FLOAT16, "f2"), (TensorProto.BFLOAT16, "bf16")):
        coarsest = name if dtype in types.values() else coarsest
    if coarsest == "bf16":
        model = in_f32(model, types)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for case in sorted(path.parent.glob(path.stem + ".?.safetensors")):
        tensors = load(case)
        inputs = {}
        for i in session.get_inputs():
            x = tensors["in:" + i.name.removesuffix("@in")]
            inputs[i.name] = x.astype("f4") if i.name.endswith("@in") else x
        for output, y in zip(session.get_outputs(), session.run(None, inputs)):
            want = tensors["out:" + output.name.removesuffix("@out")]
            if want.shape != y.shape:
                return f"{case.name}: {output.name} has shape {y.shape}, not {want.shape}"
            if want.dtype != y.dtype and "@out" not in output.name:
                return f"{case.name}: {output.name} is {y.dtype}, not {want.dtype}"
            a, b = y.astype("f8"), want.astype("f8")
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            with np.errstate(invalid="ignore"):
                apart = np.where(same, 0, np.abs(a - b))
            limit = TOLERANCE[coarsest] * max(1e-3, np.abs(np.where(np.isfinite(b), b, 0)).max(initial=0))
            if not (apart <= limit).all():
                return f"{case.name}: {output.name} differs by {np.nanmax(apart):.3g} of {limit:.3g}"
    return ""


def main(folder: Path) -> int:
    problems = []
    for path in sorted(folder.glob("*.onnx")):
        try:
            problem = check(path)
        except Exception as e:  # of any of three packages
            problem = f"{type(e).__name__}: {str(e)[:600]}"
        if problem:
            problems.append(f"{path.stem}: {problem}\n")
    (folder / "problems").write_text("".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
