"""Attention of one head, a block of keys at a time, with the sums of an online softmax."""

import nki
import nki.isa as nisa
import nki.language as nl

TILE = 128  # queries in a tile, and keys that one transpose turns: partitions
BLOCK = 512  # keys of a block: the columns that a PSUM bank holds in fp32


@nki.jit
def attention(q, k, v, scale, buffers=2):
    """softmax(scale * q.T @ k) @ v.

    Args:
        q, k: bf16 [D, Sq] and [D, Sk]; D at most 128, Sq a multiple of 128, Sk of 512.
        v: bf16 [Sk, D].
        scale: of the scores.
        buffers: blocks of keys and values in SBUF; with 2, one is loaded while one is computed.

    Returns:
        bf16 [Sq, D].
    """
    (D, Sq), Sk = q.shape, k.shape[1]
    out = nl.ndarray((Sq, D), q.dtype, buffer=nl.shared_hbm)
    k_ring = [nl.ndarray((D, BLOCK), k.dtype) for _ in range(buffers)]
    v_ring = [nl.ndarray((TILE, BLOCK // TILE, D), v.dtype) for _ in range(buffers)]
    identity = nl.shared_identity_matrix(TILE, dtype=nl.bfloat16)
    for row in range(0, Sq, TILE):
        q_tile = nl.load(q[:, row : row + TILE])
        top = nl.full((TILE, 1), -3.0e38, nl.float32)  # the largest score so far
        total = nl.zeros((TILE, 1), nl.float32)  # of the exponentials
        result = nl.zeros((TILE, D), nl.float32)
        for block in range(Sk // BLOCK):
            k_tile, v_tile = k_ring[block % buffers], v_ring[block % buffers]
            load_block(k_tile, v_tile, k, v, block)
            probabilities, decay = softmax_step(q_tile, k_tile, scale, top, total)
            product = weighted_sum(probabilities, v_tile, identity)
            nisa.scalar_tensor_tensor(result, result, nl.multiply, decay, nl.add, product)
        nisa.reciprocal(total, total)
        rounded = nl.ndarray((TILE, D), out.dtype)
        nisa.tensor_scalar(rounded, result, nl.multiply, total)
        nisa.dma_copy(out[row : row + TILE, :], rounded)
    return out


def load_block(k_tile, v_tile, k, v, block):
    """Keys as they are; values with 128 keys side by side on the partitions."""
    first = block * BLOCK
    nisa.dma_copy(k_tile, k[:, first : first + BLOCK])
    for part in range(BLOCK // TILE):
        row = first + part * TILE
        nisa.dma_copy(v_tile[:, part, :], v[row : row + TILE, :])


def softmax_step(q_tile, k_tile, scale, top, total):
    """exp(scores - new top) [128, 512], and exp(old top - new top) by which older sums shrink.

    Updates `top` and `total`.
    """
    scores = nl.ndarray((TILE, BLOCK), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(scores, q_tile, k_tile)
    block_top = nl.ndarray((TILE, 1), nl.float32)
    nisa.tensor_reduce(block_top, nl.maximum, scores, axis=1)
    new_top = nl.ndarray((TILE, 1), nl.float32)
    nisa.tensor_scalar(new_top, block_top, nl.multiply, scale, op1=nl.maximum, operand1=top)
    minus_top = nl.ndarray((TILE, 1), nl.float32)
    nisa.tensor_scalar(minus_top, new_top, nl.multiply, -1.0)
    decay = nl.ndarray((TILE, 1), nl.float32)
    nisa.activation(decay, nl.exp, top, bias=minus_top)
    probabilities = nl.ndarray((TILE, BLOCK), nl.bfloat16)
    block_total = nl.ndarray((TILE, 1), nl.float32)
    nisa.activation_reduce(
        probabilities, nl.exp, scores, nl.add, block_total, bias=minus_top, scale=scale
    )
    nisa.scalar_tensor_tensor(total, total, nl.multiply, decay, nl.add, block_total)
    nisa.tensor_copy(top, new_top)
    return probabilities, decay


def weighted_sum(probabilities, v_tile, identity):
    """probabilities @ values, in PSUM fp32 [128, D]; a product contracts over partitions, so each
    128 columns of the probabilities are transposed first."""
    parts = BLOCK // TILE
    turned = nl.ndarray((TILE, parts, TILE), nl.bfloat16, buffer=nl.psum)
    for part in range(parts):
        columns = probabilities[:, part * TILE : (part + 1) * TILE]
        nisa.nc_matmul(turned[:, part, :], columns, identity, is_transpose=True)
    weights = nl.ndarray((TILE, parts, TILE), nl.bfloat16)
    nisa.tensor_copy(weights, turned)
    product = nl.ndarray((TILE, v_tile.shape[2]), nl.float32, buffer=nl.psum)
    for part in range(parts):
        nisa.nc_matmul(product, weights[:, part, :], v_tile[:, part, :])
    return product
