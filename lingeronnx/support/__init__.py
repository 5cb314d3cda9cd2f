"""What helps where something is wrong with an installation, or with lingeronnx itself.

=============  ====================================================================================
`environment`  versions, processor, cache: what this run stands on, and what is wrong with it
`warmup`       a model that needs the usual kernels, which are compiled for it
`selftest`     the compiled kernels against the plain classes, which share no code with them
`archive`      one file to attach to a report of a bug: no weights and no data are in it
=============  ====================================================================================
"""
