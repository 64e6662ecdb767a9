"""What the tests of the extras share with those of the labs and of the launch files."""

from tests.launch.conftest import (  # noqa: F401
    family,
    launch,
    launch_environment,
    pytest_collection_modifyitems,
    temporary_folders,
    uninterrupted,
    up,
)
