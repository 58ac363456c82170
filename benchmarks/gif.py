#!/usr/bin/env python3
"""Turn a part of a video, such as one by tools/play.py --record, into a looping GIF.

./gif.py VIDEO ../docs/pictures/pong.gif --start 40 --seconds 10
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli

import cv2
from PIL import Image

COLOURS = 32


def read_frames(video: Path, start: float, seconds: float, width: int) -> tuple[list[Image.Image], float]:
    """Return the frames of a part of a video, scaled to a width in pixels, and their number a second."""
    capture = cv2.VideoCapture(str(video))
    rate = capture.get(cv2.CAP_PROP_FPS)
    frames = []
    for index in range(round((start + seconds) * rate)):
        read, pixels = capture.read()
        if not read:
            break
        if index >= round(start * rate):
            image = Image.fromarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
            image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
            frames.append(image.quantize(COLOURS, dither=Image.Dither.NONE))
    return frames, rate


def main() -> None:
    parser = cli.tool(__doc__)
    parser.add_argument("video", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--start", type=float, default=0.0, help="seconds of the video to leave out")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the picture")
    parser.add_argument("--width", type=int, default=240, help="in pixels")
    args = parser.parse_args()
    frames, rate = read_frames(args.video, args.start, args.seconds, args.width)
    if not frames:
        parser.error(f"{args.video} has no frame after {args.start:g} s")
    frames[0].save(
        args.picture, save_all=True, append_images=frames[1:], duration=10 * round(100 / rate), loop=0
    )  # a GIF counts hundredths of a second
    print(f"{args.picture}: {len(frames)} frames, {args.picture.stat().st_size / 1000:,.0f} kB")


if __name__ == "__main__":
    main()
