"""Diagnosis of an installation, and of errors in lingeronnx itself.

=============  ====================================================================================
`environment`  inspects versions, processor and cache, and reports problems
`warmup`       compiles the usual kernels with a small model
`self_test`    compares the compiled kernels with the reference operators
`bug_report`   writes an archive to attach to a bug report, without weights and data
=============  ====================================================================================
"""
