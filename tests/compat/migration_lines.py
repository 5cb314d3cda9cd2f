# ruff: noqa: E501 - a row of a table of Markdown is one line
"""The lines that people write with other tools: what each is here, and whether it runs as it was written there.

    python -m tests.compat.migration_lines      # writes the tables of docs/tutorials/coming-from-*.md anew

`TOOLS` has the table of each of these pages; their prose is their own. A row with `code` is run by `test_lines`,
with the originals' spelling, arguments and defaults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


@dataclass(frozen=True)
class MigrationLine:
    """What is written there and what here, in Markdown; code : the line itself, to be run."""

    there: str
    here: str
    code: str = ""


TOOLS: dict[str, tuple[MigrationLine, ...]] = {
    "linger": (
        MigrationLine(
            "`wb_analyse(path, log)`",
            'yes: `lo.compat.wb_analyse(path_or_state_dict, log="./wb_analyse.log")`, `lingeronnx analyze weights MODEL\\|CKPT`; nothing in a checkpoint is executed',
            """
torch.save(net.state_dict(), "float.pt")
wb_analyse("float.pt", "wb_analyse.log")
assert "Layer_name" in Path("wb_analyse.log").read_text()
""",
        ),
        MigrationLine(
            '`with Dumper() as d: d.analyse_layer_output(model, match_pattern="root.")`',
            "yes: the same with `lo.compat.Dumper`, on a session, a torch module, also after `init`, or a path (it returns the session to call); names begin with `root.`; `lingeronnx analyze outputs MODEL --data D --match REGEX`",
            """
with Dumper() as d:
    d.analyse_layer_output(net, match_pattern="root.")
    net(x)
    d.save_out_analyse_log(save_log_path="Analyse_layer_output.log")
assert "root.conv1" in Path("Analyse_layer_output.log").read_text()
with Dumper() as d:
    session = d.analyse_layer_output("float.onnx", match_pattern="root.")
    session(samples)
    d.save_out_analyse_log(save_log_path="of_file.log")
assert "root./conv1/Conv" in Path("of_file.log").read_text()
""",
        ),
        MigrationLine(
            "`trace_layers(...)` (folding batch norm)",
            "yes: `lo.torch.trace_layers`; or nothing: `quantize` folds it, and fits the scale to what the Relu behind lets through",
            """
trace_layers(net, net, x, fuse_bn=True, ahead_conv_relu=True, ahead_bn_relu=True, ahead_linear_relu=True)
assert "FoldedConv2d" in str(net)
""",
        ),
        MigrationLine(
            "`disable_quant(module)`",
            "yes: `lo.torch.disable_quant`; `--skip NODE`",
            """
disable_quant(net.fc)
init(net, mode=QuantMode.QValue)
assert "QuantizedConv2d" in str(net) and "QuantizedLinear" not in str(net.fc)
""",
        ),
        MigrationLine(
            "`quant_module(module, data_bits=16, ...)`",
            "yes: `lo.torch.quant_module`; `--override NODE=bits:16,weight_bits:16`, where the platform has them",
            """
quant_module(net.fc, data_bits=16, parameter_bits=16, out_bits=32)
init(net, out_bits=8, example_inputs=x)
assert "data_bits=16" in str(net.fc)
""",
        ),
        MigrationLine(
            "`normalize_layers(...)`, `normalize_module(...)`",
            "yes: `lo.torch.normalize_layers`, `lo.torch.normalize_module`; `lingeronnx finetune --clamp-weight 8 --clamp-output 8`, `--clamp NODE=weight:4`. `init` refuses `normalize_dynamic_percent`, which is for finding layers",
            """
normalize_module(net.conv2, normalize_weight_value=4, normalize_bias_value=4, normalize_output_value=4)
normalize_layers(
    net, normalize_modules=(nn.Conv2d, nn.Linear), normalize_weight_value=8, normalize_bias_value=8,
    normalize_output_value=8,
)
init(net, mode=QuantMode.QValue)
net.train()(x).sum().backward()
""",
        ),
        MigrationLine(
            "`disable_normalize(module)`",
            "yes: `lo.torch.disable_normalize`; `finetune --no-clamp NODE`",
            """
disable_normalize(net.fc)
normalize_layers(net, normalize_modules=(nn.Conv2d, nn.Linear))
net(x).sum().backward()
""",
        ),
        MigrationLine(
            "`torch.onnx.export(..., dynamic_axes=...)` after `init`",
            "yes, in all three forms, on `generic` and without `init`; graphs for a chip contain one sample of fixed size, and refuse it in one line",
            """
init(net, mode=QuantMode.QValue, out_bits=8, platform="generic").eval()(x)
for axes in ({"data": [0]}, {"data": {0: "N"}}, {"data": {0: "N"}, "scores": [0]}):
    lo.torch.export(
        net, (x,), "net.onnx", input_names=["data"], output_names=["scores"], dynamic_axes=axes, opset_version=12,
        is_update_dequant=True, is_scoped_info=True, debug_dump=False,
    )
    assert lo.Session("net.onnx").get_inputs()[0].shape[0] is None
""",
        ),
        MigrationLine(
            "`init(net, mode=..., data_bits=8, ...)` and training",
            "yes: `lo.torch.init`; or `lingeronnx quantize`, then where that is not enough `lingeronnx finetune`",
            """
net = init(net, quant_modules=(nn.Conv2d, nn.Linear), mode=QuantMode.QValue, data_bits=8, parameter_bits=8, out_bits=8)
assert "QuantizedConv2d" in str(net)
net.train()(x).sum().backward()
""",
        ),
        MigrationLine(
            "`QuantMode.QValue`, `QuantMode.MaxValue`",
            "yes: `lo.torch.QuantMode`; `--mode q-value`, `--mode max-value`",
        ),
        MigrationLine(
            "`torch.onnx.export(net, ...)` after `init`",
            "yes: the same line writes the integer graph; `lo.torch.export` and `lo.torch.export_debug` have more keywords. Without `init`, `lingeronnx export` before `quantize`",
            """
net = init(net, mode=QuantMode.QValue, out_bits=8).eval()
with torch.no_grad():
    torch.onnx.export(
        net, x, "net.onnx", export_params=True, opset_version=12, input_names=["data"], output_names=["scores"],
        operator_export_type=torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK,
    )
session = lo.Session("net.onnx")
assert session.is_integer and [spec.name for spec in session.inputs] == ["data"]
""",
        ),
        MigrationLine(
            "`load_state_dict(...)` after `init`",
            "yes: the same, with the keys of the float net",
            """
torch.save(net.state_dict(), "float.pt")
init(net, mode=QuantMode.QValue)
net.load_state_dict(torch.load("float.pt"))
net(x)
""",
        ),
        MigrationLine(
            "`LSTMP`, `UBLSTMP`, `FastUBLSTMP`, `NormalizeFastLSTMP`",
            "yes: the same in `lo.torch` ([recurrent networks](../explanation/recurrent.md))",
            """
steps = torch.zeros(2, 5, 6)
outputs, (hidden, cell) = LSTMP(6, 4, 8, batch_first=True, go_forward=True)(steps)
assert outputs.shape == (2, 5, 4) and hidden.shape[-1] == 4 and cell.shape[-1] == 8
assert LSTMP(6, 4, 8, batch_first=True, go_forward=False)(steps)[0].shape == (2, 5, 4)
""",
        ),
        MigrationLine(
            "`parser_dequant` and the like",
            "`lingeronnx fix-dequant LEGACY.onnx`",
        ),
        MigrationLine(
            "checkpoints of LSTM with projection",
            "`lingeronnx checkpoint IN.pt -o OUT.pt --to asr\\|plain\\|torch\\|ub`",
        ),
        MigrationLine(
            "`fix_dequant(path, False)`",
            "yes: `lo.compat.fix_dequant` writes `<name>_fix.onnx` beside the file and prints what it did. `lo.fix_dequant` writes nothing before `save`",
            """
path = fix_dequant("legacy.onnx", False)
assert path.name == "legacy_fix.onnx" and path.exists()
""",
        ),
        MigrationLine(
            "`print(net)` after `init`",
            "yes: the same: `QuantizedConv2d(...)` for each module that is quantized, before the first call as well",
            """
init(net, mode=QuantMode.QValue)
assert "QuantizedConv2d" in str(net)
""",
        ),
        MigrationLine(
            "`init(net, quant_modules=(nn.LSTM,))` of a net without",
            "a warning tells that the types fit no module",
            """
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    init(net, quant_modules=(nn.LSTM,))
assert "match no module" in str(told[0].message)
""",
        ),
    ),
    "paddleslim": (
        MigrationLine(
            "`AnalysisQuant(model_dir, ..., eval_function, data_loader, save_dir, checkpoint_name, num_histogram_plots, ptq_config)`",
            "yes: the same: `lo.compat.AnalysisQuant`; `model_dir` may be the `.onnx` file; `model_filename` and `params_filename` belong to another format and are refused",
            """
analyzer = AnalysisQuant(
    model_dir="float.onnx", eval_function=lambda model: float(model(samples).std()), data_loader=samples,
    save_dir="analysis_results", checkpoint_name="analysis_checkpoint.pkl", num_histogram_plots=0, ptq_config=None,
)
analyzer.analysis()
assert "rank" in Path("analysis_results/analysis.txt").read_text()
""",
        ),
        MigrationLine(
            "`.analysis()`",
            "yes: the same; or `lingeronnx sensitivity MODEL --calib D --eval T -o DIR`",
        ),
        MigrationLine(
            "`eval_function(program, ...)`",
            "a function of something that is called with feeds, like `lo.Session`; returns a number, larger is better",
        ),
        MigrationLine(
            "`analysis_checkpoint.pkl`",
            "`analysis_checkpoint.jsonl`: no pickle, and refused where model, data or settings are others",
        ),
        MigrationLine(
            "`analysis.txt`, `best_weight_hist_result.pdf`, ...",
            "yes: the same files in `save_dir` (PDFs need `pip install 'lingeronnx[report]'`)",
        ),
        MigrationLine(
            "`skip_tensor_list` of the next run",
            "`--skip NODE`, as printed at the end",
        ),
        MigrationLine(
            "`PTQConfig`",
            '`ptq_config={"platform": "venus", "mode": "q-value", ...}`: the settings of `lo.quantize`',
        ),
        MigrationLine(
            "an `eval_function` that returns nan",
            "refused in one line; layers with equal values are told in `analysis.txt`; another function is not taken for the one of the checkpoint",
            """
analyzer = AnalysisQuant("float.onnx", eval_function=lambda model: float("nan"), data_loader=samples)
with raises(lo.ConfigError, match="returned nan"):
    analyzer.analysis()
analyzer = AnalysisQuant("float.onnx", eval_function=lambda model: 1.0, data_loader=samples, save_dir="ties")
analyzer.analysis()
assert "layers share their value with other layers" in Path("ties/analysis.txt").read_text()
analyzer = AnalysisQuant("float.onnx", eval_function=lambda model: 2.0, data_loader=samples, save_dir="ties")
with raises(lo.ConfigError, match="pass another save_dir or checkpoint_name"):
    analyzer.analysis()
""",
        ),
    ),
    "horizon": (
        MigrationLine(
            "`check_qat_model(model, example_inputs, save_results, out_dir)`",
            "yes: `lo.compat.check_qat_model`, also with `platform=...`; of a torch module it counts the calls of each module, of a net after `lo.torch.init` it looks at the integer graph; `lingeronnx check MODEL --calib D -o DIR` writes the same `model_check_result.txt`",
            """
found = check_qat_model(net, x, save_results=True, out_dir="checked", platform="generic")
assert ("relu", "ReLU", "2") in found.use_counts and ("spare", "Linear", "0") in found.use_counts
assert "5. What looks wrong" in Path("checked/model_check_result.txt").read_text()
""",
        ),
        MigrationLine(
            "`QuantAnalysis(baseline_model, analysis_model, analysis_model_type, out_dir)`",
            'yes: `lo.compat.QuantAnalysis`; "fake_quant" is the plan computed in float, "quantized" the integer graph',
        ),
        MigrationLine(
            "`.auto_find_bad_case(data)`",
            "yes: the same; `lingeronnx badcase FLOAT QUANT --data D -o badcase.npz`",
            """
qa = QuantAnalysis("float.onnx", quantized, "quantized", out_dir="compared")
qa.auto_find_bad_case(samples, metric="L1")
qa.auto_find_bad_case(
    samples, metric="custom", custom_metric_func=lambda a, b: abs(a - b).max(), custom_metric_order_seq="descending"
)
qa.save_bad_case()
qa.run()
qa.compare_per_layer()
assert "mod_name" in Path("compared/compare_per_layer_out.txt").read_text()
""",
        ),
        MigrationLine(
            "`.save_bad_case()`: `badcase.pt`",
            "`badcase.npz`; `load_bad_case` reads both",
        ),
        MigrationLine(
            "`.run()`, `.compare_per_layer()`",
            "yes: the same files and columns; `lingeronnx compare FLOAT QUANT --data D -o DIR`, with local errors and saturation in the csv",
            """
qa = QuantAnalysis("float.onnx", quantized, "quantized", out_dir="compared")
qa.set_bad_case(samples)
qa.run(device=None)
qa.compare_per_layer()
head = Path("compared/compare_per_layer_out.csv").read_text().splitlines()[0]
assert (
    "mod_name,base_op_type,analy_op_type,shape,quant_dtype,qscale,Cosine,MSE,L1,KL,SQNR,Atol,Rtol,base_model_min,"
    "analy_model_min,base_model_max,analy_model_max,base_model_mean,analy_model_mean,base_model_var,analy_model_var"
) in head
assert Path("compared/profiler.html").exists() and Path("compared/abnormal_layer_advisor.txt").exists()
""",
        ),
        MigrationLine(
            "`.clean()`",
            "yes: removes intermediate results and keeps the reports",
            """
qa = QuantAnalysis("float.onnx", quantized, "quantized", out_dir="compared")
qa.set_bad_case(samples)
qa.sensitivity(device=None, metric="L1", reserve=True)
qa.clean()
assert {"sensitive_ops.txt", "sensitive_ops.pt"} <= {path.name for path in Path("compared").iterdir()}
assert not Path("compared/sensitivity.jsonl").exists()
""",
        ),
        MigrationLine(
            '`.sensitivity(metric="L1")`',
            'yes: the same; `lingeronnx sensitivity MODEL --calib D -o DIR --what all`. "All but one" is `--all-but-one`',
            """
qa = QuantAnalysis(net, quantized, "quantized", out_dir="compared")
qa.set_bad_case(samples)
rows = qa.sensitivity(metric="L1", reserve=False)
assert rows[0][1] in ("activation", "weight", "both")
""",
        ),
        MigrationLine(
            "`.set_model_profiler_dir(a, b)`",
            "yes: the same, with folders of `lo.compat.ModelProfiler` (of a torch module as well) or `lingeronnx profile --keep`",
            """
with ModelProfiler(net, "base"):
    net(x)
with ModelProfiler(quantized, "other"):
    quantized(samples)
qa = QuantAnalysis(net, quantized, "quantized", out_dir="compared")
qa.set_model_profiler_dir("base", "other")
assert qa.compare_per_layer().rows
""",
        ),
        MigrationLine(
            "`with ModelProfiler(model, out_dir) as p: model(data)`",
            "yes: `lo.compat.ModelProfiler`, also of a net after `lo.torch.init`; of a path `p.model` is what to call; `lingeronnx profile MODEL --data D -o DIR`",
            """
with ModelProfiler(net, "profile") as p:
    net(x)
with ModelProfiler("float.onnx", "of_file") as p:
    p.model(samples)
p.get_info_manager.table()
assert "Op Name" in Path("of_file/statistic.txt").read_text()
""",
        ),
        MigrationLine(
            "`p.get_info_manager.table(...)`",
            "yes: the same: `statistic.txt`, with names of operators or modules and types of either; `--prefix`, `--type`, `--stack` (torch's own exporter notes the place in the source, `lingeronnx export` leaves it out)",
            """
with ModelProfiler(net, "profile") as p:
    net(x)
p.get_info_manager.table(out_dir="profile", prefixes=("conv",), types=(nn.Conv2d,), with_stack=False)
rows = [line.split("|") for line in Path("profile/statistic.txt").read_text().splitlines() if "| Conv" in line]
assert {row[3].strip() for row in rows} == {"/conv1/Conv", "/conv2/Conv"} and {row[1].strip() for row in rows} == {"0", "1"}
""",
        ),
        MigrationLine(
            "`p.get_info_manager.tensorboard(...)`",
            "yes: the same, written without TensorBoard or torch; `--tensorboard`, `--per-channel`",
            """
with ModelProfiler(net, "profile") as p:
    net(x)
p.get_info_manager.tensorboard(out_dir="profile", prefixes=("conv",), types=(nn.Conv2d,), force_per_channel=True)
""",
        ),
        MigrationLine(
            "scale",
            "counts per real unit (`q = x * scale`), the inverse of the step that is printed there",
        ),
        MigrationLine(
            '`metric="custom"` without a function',
            "one line says which of `custom_metric_func` and `custom_metric_order_seq` is missing",
            """
qa = QuantAnalysis("float.onnx", quantized, "quantized")
with raises(lo.ConfigError, match="custom_metric_order_seq missing"):
    qa.auto_find_bad_case(samples, metric="custom", custom_metric_func=max)
""",
        ),
    ),
    "onnxruntime": (
        MigrationLine(
            "`quant_pre_process(...)`",
            "nothing: `quantize` simplifies, infers shapes and checks that the outputs stay the same",
        ),
        MigrationLine(
            "`CalibrationDataReader`",
            "taken as it is, wherever data are asked for",
            """
class Reader(CalibrationDataReader):
    def __init__(self):
        self.items = iter([{"x": sample[None]} for sample in samples])

    def get_next(self):
        return next(self.items, None)

assert lo.quantize("float.onnx", Reader(), platform="venus").report.chip_ready
""",
        ),
        MigrationLine(
            "`quantize_static(model_input, model_output, reader, ...)`",
            'yes: `lo.compat.quantize_static`, QDQ by default as there, on generic; for a chip with `platform="venus", quant_format=None`. What has no counterpart here is refused in its own words. Or `lo.quantize(model, reader).save(path)`',
            """
quantize_static(
    "float.onnx", "q.onnx", samples, quant_format=QuantFormat.QDQ, per_channel=True,
    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
)
lo.Session("q.onnx")(samples)
""",
        ),
        MigrationLine(
            "`CalibrationMethod.MinMax`, `Entropy`, `Percentile`",
            "`--calibrator max`, `kl`, `percentile`; the default here is `mse`",
        ),
        MigrationLine(
            "`per_channel=True`",
            "`--weight-scales channel` (platform generic)",
            """
quantize_static("float.onnx", "q.onnx", samples, per_channel=True)
""",
        ),
        MigrationLine(
            "`ActivationSymmetric=False`",
            "`--activations asymmetric` (platform generic); without it integers are symmetric",
        ),
        MigrationLine(
            "`nodes_to_exclude=[...]`",
            "`--skip NODE`; also `NODE..`, `..NODE`, globs, `type:Softmax`",
        ),
        MigrationLine(
            "`op_types_to_quantize`",
            "`--skip type:...` for the others",
        ),
        MigrationLine(
            '`extra_options={"TensorQuantOverrides": ...}`',
            "`--override TENSOR=scale:2^-7`, `bits:16`, `calibrator:max`",
        ),
        MigrationLine(
            "`activation_type=QuantType.QInt16`",
            "`--bits 16` where the platform has them",
        ),
        MigrationLine(
            "`calibration_cache_path`, `write_calibration_table`",
            "`--save-plan plan.json`, `--plan plan.json`",
        ),
        MigrationLine(
            "a model that `quantize_static` wrote, QDQ or QOperator",
            "`lingeronnx quantize MODEL --platform P`: its scales are kept as far as the platform holds them ([qdq.md](../how-to/qdq.md))",
        ),
        MigrationLine(
            "`quant_format=QuantFormat.QDQ`, `QuantFormat.QOperator`",
            "`quantize --format qdq`, `qoperator`",
        ),
        MigrationLine(
            "`quantize_dynamic(...)`",
            "no: no platform has scales at run time; `lo.compat.quantize_dynamic` says so, and what to call",
            """
with raises(lo.ConfigError, match="call quantize_static with a few samples"):
    quantize_dynamic("float.onnx", "q.onnx", weight_type=QuantType.QInt8)
""",
        ),
        MigrationLine(
            "`InferenceSession(path_or_bytes, sess_options, providers)`",
            "yes: `lo.InferenceSession`, as strict as there; `import lingeronnx as ort` also has `SessionOptions`, `RunOptions`, `OrtValue` and the like. `lo.Session(path)` converts types, runs any batch size, and has `taps`",
            """
session = lo.InferenceSession("float.onnx", lo.SessionOptions(), providers=["CPUExecutionProvider"])
session.run(None, {session.get_inputs()[0].name: samples})
""",
        ),
        MigrationLine(
            "`session.io_binding()`, `OrtValue.ortvalue_from_numpy(x)`",
            "yes, in the memory of the processor; addresses of memory (`bind_input`) are refused",
        ),
        MigrationLine(
            "`SessionOptions().enable_profiling`, `optimized_model_filepath`, custom operators",
            "no: refused; `lingeronnx profile` and `lingeronnx trace` show tensors and time. Options for speed and logs have no effect, and other providers than the processor's warn, as there",
        ),
        MigrationLine(
            "`session.run_async(...)`",
            "no: call `run` in a thread of your own",
        ),
        MigrationLine(
            "`modify_model_output_intermediate_tensors`, `collect_activations`",
            "`lo.Session(path).taps(feeds)`, `lingeronnx simulate --taps all`, `--dump DIR`",
        ),
        MigrationLine(
            "`create_activation_matching`, `compute_activation_error`",
            "`lingeronnx compare FLOAT QUANT --data D -o DIR`",
        ),
        MigrationLine(
            "`create_weight_matching`, `compute_weight_error`",
            "`lingeronnx sensitivity --what weight`; `lo.QuantizedModel.plan` has the scales",
        ),
        MigrationLine(
            "`compute_signal_to_quantization_noice_ratio`",
            "the column SQNR: the same number",
        ),
    ),
    "ppq": (
        MigrationLine(
            "`espdl_quantize_onnx(onnx_import_file, espdl_export_file, calib_dataloader, calib_steps, input_shape, target=...)`",
            "`lingeronnx quantize MODEL --calib D --limit N --platform P -o OUT`, `lo.quantize(path, loader, limit=N, platform=P)`; MODEL stays as it is",
            """
loader = torch.utils.data.DataLoader(x, batch_size=1)
lo.quantize("float.onnx", loader, limit=8, platform="venus", effort="fast").save("out.onnx")
""",
        ),
        MigrationLine(
            "`espdl_quantize_torch(model, ...)`",
            '`lo.torch.export(model, x, "float.onnx")`, then the same',
        ),
        MigrationLine(
            "`calib_dataloader`, `collate_fn`",
            "a DataLoader, any iterable or function of batches, an `.npz`, `file.py:function`; it yields what the model takes",
        ),
        MigrationLine(
            "`QuantizationSettingFactory.espdl_setting()`",
            "`--config quant.yaml`; `lingeronnx schema quant` describes it",
        ),
        MigrationLine(
            '`quantize_activation_setting.calib_algorithm = "kl"`',
            "`--calibrator kl`, `percentile`, `max`; the default is `mse`",
        ),
        MigrationLine(
            '`calib_algorithm_per_layer[NAME] = "minmax"`',
            "`--override NAME=calibrator:max`",
        ),
        MigrationLine(
            "`equalization = True`, `bias_correct = True`",
            "nothing: `quantize` does both, where samples that were held back show a gain",
        ),
        MigrationLine(
            "`tqt_optimization`, `lsq_optimization`, `blockwise_reconstruction`",
            "weights are refined by default, `quantize --effort best` takes more time for it; with training `lingeronnx finetune MODEL --train D -o OUT --method blocks --rounding soft`, whose scales are trained as well",
        ),
        MigrationLine(
            "`dispatching_table.append(NAME, TargetPlatform.ESPDL_INT16)`, `TargetPlatform.FP32`",
            "`--override NAME=bits:16` where the platform has them, `--skip NAME`",
        ),
        MigrationLine(
            "`espdl_auto_quantize_onnx(...)`",
            "`lingeronnx quantize MODEL --calib D --eval T --max-drop 0.5`, or `--min-sqnr 25` without labels",
        ),
        MigrationLine(
            "`graphwise_error_analyse(graph, ...)`",
            "`lingeronnx compare FLOAT QUANT --data D -o DIR`",
            """
quantized.save("out.onnx")
lo.compare("float.onnx", "out.onnx", samples)
""",
        ),
        MigrationLine(
            "`layerwise_error_analyse(graph, ...)`",
            "`lingeronnx sensitivity MODEL --calib D -o DIR`",
        ),
        MigrationLine(
            "`statistical_analyse(graph, ...)`, `variable_analyse`",
            "`lingeronnx profile MODEL --data D -o DIR`; a tensor's histogram stands on the page of `compare`",
        ),
        MigrationLine(
            "`parameter_analyse(graph)`",
            "`lingeronnx analyze weights MODEL`",
        ),
        MigrationLine(
            "`TorchExecutor(graph).forward(x)`",
            "`lo.Session(path).run(None, feeds)`: the chip's integers, where theirs are floats that were rounded",
            """
session = lo.Session(quantized)
session.run(None, {session.get_inputs()[0].name: samples})
""",
        ),
        MigrationLine(
            "the files `.espdl`, `.info`, `.json`",
            "OUT; `lingeronnx deploy OUT -o DIR` writes what a board needs; `--save-plan plan.json` the scales. Their `.json` is read by `--plan`",
        ),
        MigrationLine(
            "`export_test_values=True`",
            "`deploy` writes golden vectors, `lingeronnx verify` compares the board's outputs with them",
        ),
        MigrationLine(
            "`auto_streaming=True`, `insert_streaming_cache_on_var`",
            "none: write the states as inputs and outputs of the model, and say which feeds which: `--state OUT=IN`",
        ),
        MigrationLine(
            "`Exporter(platform=TargetPlatform.ONNXRUNTIME).export(...)`",
            "`lingeronnx convert OUT --to qdq -o qdq.onnx`; `--exact` gives the simulator's integers bit for bit in onnxruntime",
        ),
        MigrationLine(
            "`scale`, `exponent`",
            "here `q = round(x * scale)`: 128 here is the scale 0.0078125 and the exponent -7 there",
        ),
        MigrationLine(
            "SNR of a report: noise over signal",
            "SQNR in dB, larger is better: 0.01 there is 20 dB here",
        ),
    ),
}


def page(tool: str) -> Path:
    """Return the place of a tool's page."""
    return DOCS / f"coming-from-{tool}.md"


def written(tool: str) -> str:
    """Return a tool's page with its table as `TOOLS` has it."""
    rows = "".join(f"| {line.there} | {line.here} |\n" for line in TOOLS[tool])
    table = f"| there | here |\n|---|---|\n{rows}"
    return re.sub(
        r"\| there \| here \|\n(\|.*\n)+",
        lambda _: table,
        page(tool).read_text(encoding="utf-8"),
        count=1,
    )


if __name__ == "__main__":
    for name in TOOLS:
        page(name).write_text(written(name), encoding="utf-8")
