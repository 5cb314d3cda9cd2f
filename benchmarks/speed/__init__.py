"""How fast: simulator, quantize and first runs, each beside what other engines do in the same run.

    python -m benchmarks.speed [--quick] [--only PART] [--write benchmarks/results]   `make bench`
    python -m benchmarks.speed.simulator_speed MODEL.onnx ...    the simulator on models of your own
    python -m benchmarks.speed.tiles                           register tiles, and kernels alone
    python -m benchmarks.speed.large FOLDER                    large networks: time and memory
    python -m benchmarks.speed.quantize_cost MODEL CALIB       quantize beside quantize_static
    python -m benchmarks.speed.cold_start [MODEL.onnx]           what a first run compiles

`nets` has the models, `timing` the rounds and their medians, `machine` what the processor can do at
best, `page` the tables, the file of the figures, and what became slower.
"""
