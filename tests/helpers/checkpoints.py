"""Checkpoints as OpenRLHF and DeepSpeed save them."""

import torch
from run_files import args_for

from openrlhf_sagc.run.checkpoints import SAVED, choose_checkpoint


class Checkpoints:
    """Saves checkpoints of two ranks, and reads the one that a run goes on from."""

    def __init__(self, folder):
        self.args, self.folder = args_for(folder), folder / "_actor"

    def save(self, step, write=torch.save):
        checkpoint = self.folder / f"global_step{step}"
        checkpoint.mkdir(parents=True)
        states = {"module": torch.full((500,), step), "samples_generator": {"steps": step}}
        write(states, checkpoint / "mp_rank_00_model_states.pt")
        for rank in range(2):
            write(
                {"optimizer": torch.full((500,), step)}, checkpoint / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            )
        with open(self.folder / "latest", "w") as latest:
            latest.write(checkpoint.name)
        (checkpoint / SAVED).write_text("{}")

    def step_to_go_on_from(self):
        """The step of the checkpoint that DeepSpeed would load, all of whose files are read."""
        choose_checkpoint(self.args)
        checkpoint = self.folder / (self.folder / "latest").read_text()
        tensors = [torch.load(file) for file in sorted(checkpoint.glob("*.pt"))]
        assert len(tensors) == 3 and len({int(t.get("module", t.get("optimizer"))[0]) for t in tensors}) == 1
        return tensors[0]["samples_generator"]["steps"]
