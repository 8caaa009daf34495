# framework: pytorch-metric-learning
# program: triplets mined in each batch, `ProxyAnchorLoss`, a cross-batch memory, nearest neighbours in the evaluation
import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(160, 12), torch.randint(0, 5, (160,))
x[torch.arange(160), y] += 3
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:128], y[:128]), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))
distance = distances.CosineSimilarity()
triplet = losses.TripletMarginLoss(margin=0.2, distance=distance, reducer=reducers.ThresholdReducer(low=0))
miner = miners.TripletMarginMiner(margin=0.2, distance=distance, type_of_triplets="semihard")
proxy = losses.ProxyAnchorLoss(num_classes=5, embedding_size=8)
memory = losses.CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=8, memory_size=96)
optimizer = torch.optim.SGD([*net.parameters(), *proxy.parameters()], lr=0.05)
for epoch in range(2):
    net.train()
    for data, labels in loader:
        optimizer.zero_grad()
        embeddings = net(data)
        mined = miner(embeddings, labels)
        one, two, three = triplet(embeddings, labels, mined), proxy(embeddings, labels), memory(embeddings, labels)
        (one + 0.1 * two + three).backward()
        optimizer.step()
        print(epoch, f"{one.item():.5f} {two.item():.5f} {three.item():.5f} triplets {miner.num_triplets}")
    net.eval()
    with torch.no_grad():
        train, test = net(x[:128]), net(x[128:])
        near = torch.cdist(test, train).argmin(1)
        print("precision@1", (y[:128][near] == y[128:]).float().mean().item())
