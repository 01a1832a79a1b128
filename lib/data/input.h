/* SPDX-License-Identifier: MIT */
/* input: reads files, or standard input, to their ends into the sinks. */
#ifndef NIBBLE_DATA_INPUT_H
#define NIBBLE_DATA_INPUT_H

#include "lib/data/sink.h"

struct input_reader;
struct input_reader *input_open(const struct data_options *c, const struct tokenizer *t,
                                struct sink *sinks, struct host_progress *progress,
                                struct err *err);
/* Read a file to its end; xxh3 gets the hash of its bytes. */
int input_read(struct input_reader *f, const char *path, uint8_t xxh3[XXH3_BYTES]);
/* The kind that the last input looks like. */
enum input input_likely(const struct input_reader *f);
/* Whether its first line has several blanks, and no TAB, where a TSV is expected. */
bool input_has_blanks(const struct input_reader *f);
void input_close(struct input_reader *f);

#endif
