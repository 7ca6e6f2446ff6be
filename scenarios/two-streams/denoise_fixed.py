"""Denoise clips on one stream while the next clips are cut out of the archive on another."""
import sys

import torch

FRAMES, SIZE, CLIP, STEPS = 4096, 1024, 256, 5


def cut(archive, starts, stream):
    """Clips of CLIP frames, cut on `stream`."""
    with torch.cuda.stream(stream):
        frames = starts[:, None] + torch.arange(CLIP, device="cuda")
        clips = archive.index_select(0, frames.flatten())
        return clips.view(len(starts), CLIP, SIZE).half()


def denoise(clips, weight):
    for _ in range(24):
        clips = clips - 0.1 * torch.tanh(clips @ weight)
    return clips


def starts_of(step):
    """Where the clips of a step begin: evenly, and from the end in the last steps, which have the newest material."""
    if step < 3:
        return torch.arange(8) * CLIP + step
    return FRAMES - torch.arange(8) * CLIP - CLIP


def main():
    if not torch.cuda.is_available():
        sys.exit("denoise.py needs a CUDA device: it is about its streams")
    torch.manual_seed(0)
    archive = torch.randn(FRAMES, SIZE, device="cuda")
    weight = (torch.randn(SIZE, SIZE, device="cuda") / SIZE**0.5).half()
    main_stream, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main_stream)
    ahead = cut(archive, starts_of(0).cuda(), side)
    for step in range(STEPS):
        main_stream.wait_stream(side)
        clips = ahead
        clips.record_stream(main_stream)
        starts = starts_of(step + 1).cuda()
        side.wait_stream(main_stream)
        clean = denoise(clips, weight)
        ahead = cut(archive, starts, side)
        print(f"step {step}: mean {clean.mean().item():+.4f}", flush=True)


if __name__ == "__main__":
    main()
