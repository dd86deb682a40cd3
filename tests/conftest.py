"""Every test starts from the same random state, and a failing example is found again by running the test again."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "regard", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("regard")
torch.set_num_threads(1)  # tensors here are small, and threads that wait for each other are slower than one


@pytest.fixture(autouse=True)
def _same_random_numbers_in_every_test():
    torch.manual_seed(0)
