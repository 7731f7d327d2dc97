"""Headers of GGUF files, as the `gguf` package writes them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

SMALL = {
    "token_embd.weight": ("Q6_K", (256, 1000)),
    "blk.0.attn_norm.weight": ("F32", (256,)),
    "blk.0.attn_q.weight": ("Q4_0", (256, 256)),
    "blk.1.attn_q.weight": ("Q4_0", (256, 256)),
    "blk.0.attn_v.weight": ("Q8_0", (256, 64)),
    "blk.0.ffn_down_exps.weight": ("MXFP4", (512, 256, 8)),
    "blk.0.ffn_gate_inp.weight": ("F32", (256, 8)),
    "blk.0.ffn_up.weight": ("Q5_0", (256, 512)),
    "blk.1.ffn_up.weight": ("Q5_0", (256, 512)),
}


def model_file(
    folder: Path,
    tensors: dict[str, tuple[str, tuple[int, ...]]],
    used: int = 2,
    numbers: Mapping[str, int] | None = None,
    architecture: str = "llama",
) -> Path:
    """A file of which only the header is written; `numbers` describe the architecture."""
    path = folder / "model.gguf"
    writer = GGUFWriter(path, architecture)
    for name, number in (numbers or {}).items():
        writer.add_uint32(f"{architecture}.{name}", number)
    writer.add_expert_used_count(used)
    writer.add_token_list(["one", "two", "zwölf"])
    writer.add_token_scores([0.5, 1.5, 2.5])
    writer.add_string("general.note", "any")
    writer.add_bool("general.flag", True)
    for name, (kind, shape) in tensors.items():
        floats = {"F32": np.float32, "F16": np.float16}
        raw = None if kind in floats else GGMLQuantizationType[kind]
        writer.add_tensor_info(name, tuple(reversed(shape)), np.dtype(floats.get(kind, np.float32)), 0, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path
