"""Lowering passes, one file each, every one an `onnx_ir.passes.InPlacePass`."""
