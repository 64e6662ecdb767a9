"""Notebooks run anew by nbval: patience for a busy machine, and nothing that two kernels could take from each other."""

import functools

from tools.kernels import through_files

OUTPUT_S = 280


def pytest_configure(config):
    """Kernels talk through files; and Matplotlib has its list of fonts before the first of them starts.

    Where there is no list Matplotlib makes one, and after five seconds says so in a cell's output.
    """
    import nbval.kernel

    if not hasattr(config, "workerinput"):
        import matplotlib.font_manager  # noqa: F401
    files = through_files()
    settings = files.__enter__()
    config.add_cleanup(lambda: files.__exit__(None, None, None))
    nbval.kernel.KernelManager = functools.partial(nbval.kernel.KernelManager, config=settings)


def pytest_collection_modifyitems(items):
    """A cell's outputs come after the kernel's word that it has ended; nbval gives them five seconds."""
    for item in items:
        if hasattr(item, "output_timeout"):
            item.output_timeout = OUTPUT_S
