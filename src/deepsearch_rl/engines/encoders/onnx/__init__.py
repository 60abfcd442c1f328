"""The encoder `onnx`: a sentence model, run by ONNX Runtime."""
