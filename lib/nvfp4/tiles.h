/* SPDX-License-Identifier: MIT */
/* tiles: block scales in the layout of tensor cores, "128x4".
 *
 * A tile has the scales of 128 rows and 4 blocks, 64 columns, of them: 512 bytes that
 * lie together.  Tiles follow each other along the row, then down.  In a tile the four
 * scales of a row are neighbours; behind those of row r come those of r + 32, r + 64
 * and r + 96, then those of row r + 1.  Rows and blocks are filled up to whole tiles
 * with zeros, which must be written: hardware reads them.
 *
 * In memory only; files hold scales row by row. */
#ifndef NIBBLE_NVFP4_TILES_H
#define NIBBLE_NVFP4_TILES_H

#include <stddef.h>
#include <stdint.h>

/* The qualifiers of functions that are compiled for a GPU, too. */
#ifndef TILES_FN
#define TILES_FN static inline
#endif

enum { TILE_ROWS = 128, TILE_BLOCKS = 4 };

/* The number of scales with those that fill up tiles. */
TILES_FN size_t
tiles_rows(size_t rows)
{
    return (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}

TILES_FN size_t
tiles_blocks(size_t blocks)
{
    return (blocks + TILE_BLOCKS - 1) / TILE_BLOCKS * TILE_BLOCKS;
}

TILES_FN size_t
tiles_bytes(size_t rows, size_t blocks)
{
    return tiles_rows(rows) * tiles_blocks(blocks);
}

/* The index of the scale of a block in a row, in rows of so many blocks. */
TILES_FN size_t
tiles_at(size_t row, size_t block, size_t blocks)
{
    size_t across = tiles_blocks(blocks) / TILE_BLOCKS;
    size_t tile = row / TILE_ROWS * across + block / TILE_BLOCKS;
    size_t in = row % TILE_ROWS;
    return tile * TILE_ROWS * TILE_BLOCKS + in % 32 * 16 + in / 32 * 4 +
           block % TILE_BLOCKS;
}

/* Scales row by row, a byte a block, to tiles. */
TILES_FN void
tiles_make(uint8_t *tiles, const uint8_t *scales, size_t rows, size_t blocks)
{
    for (size_t i = 0; i < tiles_bytes(rows, blocks); i++)
        tiles[i] = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t b = 0; b < blocks; b++)
            tiles[tiles_at(r, b, blocks)] = scales[r * blocks + b];
}

#endif
