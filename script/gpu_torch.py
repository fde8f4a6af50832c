#!/usr/bin/env python3
"""Times PyTorch where it is installed, for script/gpu to print beside ours: a training step of GPT-2 124M in bf16, eager and
compiled, square products, and attention. Names and sizes are those of bench_gpu and examples/gpt2.

usage: gpu_torch.py FILE.json [--limit SECONDS] [--smoke]    --smoke: tiny sizes, on the CPU if there is no device

Exits 3, and says why, where there is nothing to time."""
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

smoke = "--smoke" in sys.argv
arguments = [a for a in sys.argv[1:] if a != "--smoke"]
if len(arguments) not in (1, 3) or arguments[0].startswith("-") or arguments[1:2] not in ([], ["--limit"]):
    print(__doc__)
    sys.exit(0 if arguments == ["--help"] else 2)

try:  # after the help, which needs no PyTorch
    import torch
    import torch.nn.functional as F
except (ImportError, OSError) as error:  # OSError: a library of CUDA that it needs is absent
    print(f"no PyTorch here: {str(error).splitlines()[0]}")
    sys.exit(3)


class Block(torch.nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.c_attn, self.c_proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(width, 2))
        x = x + self.c_proj(attention(q, k, v).transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    """GPT-2, which ends in the loss. The last layer has the weight of the first."""

    def __init__(self, vocabulary: int = 50257, context: int = 1024, layers: int = 12, heads: int = 12, width: int = 768):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(context, width)
        self.h = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def attention(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf")).softmax(-1) @ v


class Run:
    def __init__(self, file: Path, limit: float, smoke: bool):
        self.file = file
        self.end = time.monotonic() + limit
        self.smoke = smoke
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.figures: list[dict] = []
        self.left_out: list[str] = []

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def milliseconds(self, call: Callable[[], object]) -> list[float]:
        """The times of a call, each the mean of 10 ms or more."""
        for _ in range(1 if self.smoke else 3):
            call()
        times: list[float] = []
        calls = 1
        while len(times) < (1 if self.smoke else 15):
            self.wait()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            self.wait()
            took = time.perf_counter() - start
            if took < 0.01 and not self.smoke:
                calls *= 2
                continue
            times.append(1e3 * took / calls)
        return times

    def write(self) -> None:
        """After each figure, since the time of a whole run may be limited."""
        name = torch.cuda.get_device_name() if self.device == "cuda" else "the CPU"
        self.file.write_text(json.dumps({"version": torch.__version__, "device": name, "figures": self.figures, "left_out": self.left_out}))

    def take(self, name: str, make: Callable[[], tuple[Callable[[], object], float]], unit: str) -> None:
        """Times what `make` returns, beside its work for each call."""
        if time.monotonic() > self.end:
            self.left_out.append(f"{name}: time was up")
            return
        try:
            call, work = make()
            times = self.milliseconds(call)
        except Exception as error:  # a version that lacks something, or not enough memory: the others still count
            self.left_out.append(f"{name}: {(str(error).splitlines() or [type(error).__name__])[0]}")
            return
        finally:
            if self.device == "cuda":
                torch.cuda.empty_cache()
        median = statistics.median(times)
        self.figures.append({"name": name, "median_ms": median, "per_second": work / median * 1e3, "unit": unit})
        print(f"{name}: {median:.3f} ms", flush=True)
        self.write()

    # --- cases ---
    def product(self, n: int, dtype: torch.dtype):
        a, b = (torch.randn(n, n, device=self.device, dtype=dtype) for _ in range(2))
        return lambda: a @ b, 2.0 * n**3

    def attention(self, features: int, backward: bool):
        batch, heads, positions = (2, 2, 40) if self.smoke else (16, 768 // features, 1024)
        shape = (batch, heads, positions, features)
        q, k, v = (torch.randn(shape, device=self.device, dtype=torch.bfloat16, requires_grad=backward) for _ in range(3))
        work = 2.0 * batch * heads * positions**2 * features  # two products, of which causal attention needs half
        if not backward:
            return lambda: attention(q, k, v), work
        y = attention(q, k, v)
        dy = torch.randn_like(y)
        return lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), 2.5 * work

    def gpt2(self, compiled: bool, batch: int):
        model = (Gpt(300, 40, 2, 2, 64) if self.smoke else Gpt()).to(self.device)
        context, vocabulary = model.wpe.num_embeddings, model.wte.num_embeddings
        groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == many], "weight_decay": 0.1 if many else 0.0}
                  for many in (True, False)]
        opt = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), **({"fused": True} if self.device == "cuda" else {}))
        tokens, targets = (torch.randint(vocabulary, (batch, context), device=self.device) for _ in range(2))
        loss_of = torch.compile(model) if compiled else model

        def step():
            with torch.autocast(self.device, dtype=torch.bfloat16):
                loss = loss_of(tokens, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)

        return step, float(batch * context)

    def everything(self) -> None:
        for name, dtype in ("bf16", torch.bfloat16), ("f16", torch.float16):
            for n in (4096, 8192):
                if self.device == "cuda" or dtype == torch.bfloat16:
                    self.take(f"gemm/{name}/{n}", lambda: self.product(16 if self.smoke else n, dtype), "FLOP/s")
        for features in (64, 128):
            for backward in (False, True):
                self.take(f"attention/bf16/{features}" + "/backward" * backward, lambda: self.attention(features, backward), "FLOP/s")
        for compiled in (False, True):
            name = "gpt2/" + ("compiled" if compiled else "eager")
            for batch in (2,) if self.smoke else (64, 32, 16):  # the largest that there is memory for
                if compiled and not hasattr(torch, "compile"):
                    self.left_out.append(f"{name}: this version has no torch.compile")
                    break
                self.take(f"{name}/{batch}", lambda: self.gpt2(compiled, batch), "tokens/s")
                if self.figures and self.figures[-1]["name"] == f"{name}/{batch}":
                    break


def main() -> int:
    run = Run(Path(arguments[0]), float(arguments[2]) if len(arguments) == 3 else 120, smoke)
    if run.device == "cpu" and not smoke:
        print(f"PyTorch {torch.__version__} sees no CUDA device")
        return 3
    run.everything()
    run.write()
    print("\n".join(run.left_out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
