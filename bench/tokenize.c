/* SPDX-License-Identifier: MIT */
/* tokenize: times loading, encoding and decoding; started by bench/tokenize.sh.
 *
 *   tokenize TOKENIZER.json TEXT [RUNS]
 *
 * One line: seconds to load, MB/s of encoding and of decoding (10^6 bytes of text a
 * second, the best of RUNS), ids.  Outside the timing: reading the text, opening an
 * encoder, freeing.  Each run has a new encoder, so its table of pieces is cold; the
 * lists of ids and bytes have grown in the first run.
 */
#include "lib/base/os.h"
#include "lib/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

static struct slice
read_text(const char *path)
{
    struct buf b = { 0 };
    char chunk[65536];
    size_t n;
    FILE *f = fopen(path, "rb");
    while (f && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        buf_add(&b, chunk, n);
    if (!f || ferror(f) || b.failed || fclose(f) != 0) {
        perror(path);
        exit(2);
    }
    return (struct slice){ b.data, b.len };
}

int
main(int argc, char **argv)
{
    static struct guard guard;
    struct err err = { 0 };
    if (argc < 3) {
        fprintf(stderr, "usage: tokenize TOKENIZER.json TEXT [RUNS]\n");
        return 2;
    }
    int runs = argc > 3 ? atoi(argv[3]) : 5; // NOLINT(cert-err34-c)
    struct slice text = read_text(argv[2]);
    if (utf8_check(text.p, text.n) != text.n) {
        fprintf(stderr, "tokenize: %s is not UTF-8\n", argv[2]);
        return 2;
    }
    double start = os_seconds();
    struct tokenizer *t = tokenizer_open(argv[1], &guard, &err);
    double load = os_seconds() - start, best_encode = 1e9, best_decode = 1e9;
    struct ids ids = { 0 };
    struct buf back = { 0 };
    for (int i = 0; t && i < runs; i++) {
        struct encoder *e = encoder_open(t, &err);
        ids.n = back.len = 0;
        start = os_seconds();
        if (!e || encode(e, &ids, text, false, &err) < 0)
            break;
        double s = os_seconds() - start;
        best_encode = s < best_encode ? s : best_encode;
        encoder_close(e);
        start = os_seconds();
        if (decode(t, &back, ids.v, ids.n, &err) < 0)
            break;
        s = os_seconds() - start;
        best_decode = s < best_decode ? s : best_decode;
    }
    if (err.kind) {
        fprintf(stderr, "tokenize: %s\n", err.msg);
        return 2;
    }
    printf("%.3f,%.1f,%.1f,%zu\n", load, (double)text.n * 1e-6 / best_encode,
           (double)text.n * 1e-6 / best_decode, ids.n);
    tokenizer_close(t);
    return 0;
}
