"""The third way in: `tf_ti.Loop`, TensorRT's loop, whose block is traced.

A `Loop` opens a `Block`, which adds layers to a node of a `Network`. When the outermost block ends,
`Levels` say in which loop each operation runs, and `building` makes a `TracedLoop` of each loop.
"""
