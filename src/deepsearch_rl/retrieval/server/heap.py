"""Freed memory goes back to the system.

glibc keeps what is freed below something that is still in use, and a server always has something in use: after one
answer of thousands of passages its heap would stay as large. Trimming gives back the free pages in between, too.
"""

import asyncio
import ctypes

TRIM_EVERY_S = 10


async def trim_now_and_then() -> None:
    """Trim the heap every few seconds until cancelled; where the C library is not glibc, do nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(TRIM_EVERY_S)
        await asyncio.to_thread(trim, 0)
