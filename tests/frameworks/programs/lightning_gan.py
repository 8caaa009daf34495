# framework: lightning
# program: GAN with manual optimization, two optimizers, progress bar
# mask: ━.*
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, z):
        return self.generator(z)

    def adversarial_loss(self, y_hat, y):
        return F.binary_cross_entropy_with_logits(y_hat, y)

    def training_step(self, batch):
        real = batch
        opt_g, opt_d = self.optimizers()
        z = torch.randn(real.shape[0], 4).type_as(real)

        self.toggle_optimizer(opt_g)
        fake = self(z)
        g_loss = self.adversarial_loss(self.discriminator(fake), torch.ones(real.size(0), 1))
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        opt_g.step()
        opt_g.zero_grad()
        self.untoggle_optimizer(opt_g)

        self.toggle_optimizer(opt_d)
        real_loss = self.adversarial_loss(self.discriminator(real), torch.ones(real.size(0), 1))
        fake_loss = self.adversarial_loss(self.discriminator(self(z).detach()), torch.zeros(real.size(0), 1))
        d_loss = (real_loss + fake_loss) / 2
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        opt_d.step()
        opt_d.zero_grad()
        self.untoggle_optimizer(opt_d)
        print(f"{self.global_step} g {g_loss.item():.6f} d {d_loss.item():.6f}")

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.generator.parameters(), lr=2e-3),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-3),
        ], []


L.seed_everything(0)
data = torch.randn(64, 2) * 0.5 + 2
gan = GAN()
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False
)
trainer.fit(gan, DataLoader(data, batch_size=16, shuffle=True))
