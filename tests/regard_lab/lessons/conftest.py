import pytest
from teaching import untrained_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("runs") / "run")
