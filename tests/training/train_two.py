"""One of two processes that train together; started by test_workers.py through torchrun.

train_two.py FOLDER STEPS
"""

import dataclasses
import os
import sys
from pathlib import Path

import torch
from toy_training import CONFIG, ToyTask, make_model

from regard.training import train

if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = dataclasses.replace(CONFIG, steps=int(sys.argv[2]))
    task = ToyTask(rank=rank, processes=processes)
    if rank:
        task.validation_batches = lambda: [ToyTask().lines[:8]]
    else:
        task.validation_batches = lambda: [ToyTask().lines[8:12]]
    model = make_model(torch.float64, dropout=0.0)
    result = train(model, task, config, Path(sys.argv[1]), kind="toy", resume=True, cpu=True)
    print(f"rank {rank}: {result.tokens} tokens, validation {result.valid_loss!r}")
    torch.distributed.destroy_process_group()
