# framework: hydra
# package: hydra-core
# program: `@hydra.main` with a structured config, `instantiate`, its own output folder
# mask: \[\d{4}-[^\]]*\]
import logging
from dataclasses import dataclass, field

import hydra
import torch
from hydra.core.config_store import ConfigStore
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

log = logging.getLogger(__name__)


@dataclass
class OptimizerConfig:
    _target_: str = "torch.optim.SGD"
    lr: float = 0.05
    momentum: float = 0.9


@dataclass
class Config:
    seed: int = 3
    epochs: int = 3
    batch_size: int = 16
    hidden: int = 24
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


ConfigStore.instance().store(name="config", node=Config)


@hydra.main(version_base=None, config_name="config")
def main(cfg: DictConfig) -> None:
    print(OmegaConf.to_yaml(cfg))
    torch.manual_seed(cfg.seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, cfg.hidden), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(cfg.hidden, 1)
    )
    optimizer = instantiate(cfg.optimizer, params=model.parameters())
    x = torch.randn(64, 6)
    y = x.prod(1, keepdim=True)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), cfg.batch_size, shuffle=True)
    for epoch in range(cfg.epochs):
        for bx, by in loader:
            loss = torch.nn.functional.mse_loss(model(bx), by)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        log.info("epoch %d loss %.6f", epoch, loss.item())
        print(f"epoch {epoch} loss {loss.item():.6f}")
    torch.save(model.state_dict(), f"{hydra.core.hydra_config.HydraConfig.get().runtime.output_dir}/model.pt")


if __name__ == "__main__":
    main()
