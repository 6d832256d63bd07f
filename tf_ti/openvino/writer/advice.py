"""What to do about operations that IR does not have."""

_OF_OPERATIONS = {
    "Eig Qr SchurX SelfAdjointEigV2 Svd": (
        "IR has no decompositions of matrices: compute them before the model, and give it the parts"
    ),
    "AsString DecodeRaw SparseCross StringSplitV2 StringToHashBucketFast StringToNumber": (
        "OpenVINO has no strings: make numbers of them before the model"
    ),
    "RandomStandardNormal RandomUniform RandomUniformInt StatelessRandomNormalV2 "
    "StatelessRandomUniformV2 StatelessRandomUniformIntV2 TruncatedNormal": (
        "random numbers must be an input"
    ),
}
ADVICE = {kind: text for kinds, text in _OF_OPERATIONS.items() for kind in kinds.split()}
