"""precompiled_header: headers that a compiler reads once for all sources of a library.

TensorFlow's take it longer than most of our sources do.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    # The compiler looks for the compiled header beside the header.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    ctx.actions.symlink(output = header, target_file = ctx.file.hdr)

    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    context = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts +
                             ctx.attr.copts + ["-x", "c++-header"],
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = depset(ctx.attr.local_defines, transitive = [context.defines]),
        use_pic = True,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([header], transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling " + ctx.file.hdr.short_path,
    )
    files = depset([header, compiled])
    return [
        DefaultInfo(files = files),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = files)),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdr": attr.label(allow_single_file = True),
        "local_defines": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def including(name):
    """The copts of sources that read the precompiled_header `name` of their package.

    They must depend on it, and agree with it in all other copts and defines.
    """
    folder = "/".join([part for part in ["$(GENDIR)", native.package_name()] if part])
    return ["-include", "%s/%s.h" % (folder, name)]
