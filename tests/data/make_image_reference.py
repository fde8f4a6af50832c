#!/usr/bin/env python3
"""Writes image_reference.inc: what PIL and torchvision make of two images, for tests/train/images_test.cpp.

Written with torch 2.15, torchvision 0.29 and Pillow 13."""
import math
from pathlib import Path

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms import InterpolationMode

FOLDER = Path(__file__).parent
NEAREST = InterpolationMode.NEAREST


def image(height: int, width: int) -> torch.Tensor:
    c, y, x = torch.meshgrid(torch.arange(3), torch.arange(height), torch.arange(width), indexing="ij")
    return ((60 * c + 11 * y * (c + 1) + 17 * x + 5 * x * y) % (240 - 50 * c) + 5 * c).to(torch.uint8)


def by_pil(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    resized = Image.fromarray(x.permute(1, 2, 0).numpy()).resize((width, height), Image.BILINEAR)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def affine(x: torch.Tensor, translate=(0, 0), shear=(0.0, 0.0)) -> torch.Tensor:
    degrees = [math.degrees(math.atan(s)) for s in shear]
    center = [0, 0] if any(shear) else None
    return F.affine(x, 0.0, list(translate), 1.0, degrees, NEAREST, [0.0], center)


def main() -> None:
    large, x = image(31, 45), image(9, 11)
    results = {
        "smaller": by_pil(large, 12, 9),
        "larger": by_pil(x, 13, 20),
        "box": by_pil(large[:, 3:23, 10:41], 7, 8),
        "wide": by_pil(large, 31, 10),
        "center": F.center_crop(x, [6, 6]),
        "around": F.center_crop(x, [12, 14]),
        "brightness": F.adjust_brightness(x, 1.7),
        "contrast": F.adjust_contrast(x, 0.3),
        "saturation": F.adjust_saturation(x, 1.6),
        "sharpness": F.adjust_sharpness(x, 1.8),
        "hue": F.adjust_hue(x, -0.2),
        "posterize": F.posterize(x, 3),
        "solarize": F.solarize(x, 120.5),
        "autocontrast": F.autocontrast(x),
        "equalize": F.equalize(large),
        "shear_x": affine(x, shear=(0.27, 0)),
        "shear_y": affine(x, shear=(0, -0.23)),
        "shift": affine(x, translate=(3, -2)),
        "rotate": F.rotate(x, 27.0, NEAREST, fill=[0.0]),
    }
    with open(FOLDER / "image_reference.inc", "w") as file:
        print("// Written by make_image_reference.py: name, height, width, bytes of three planes.", file=file)
        for name, t in results.items():
            print(f'{{"{name}", {{{t.shape[1]}, {t.shape[2]}, {{{", ".join(str(int(v)) for v in t.flatten())}}}}}}},', file=file)


if __name__ == "__main__":
    main()
