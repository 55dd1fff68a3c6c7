/* What the mock engine and the load client share: a clock, byte buffers, and the stamp that every token carries.
 *
 * A stamp says when a token was sent, of which stream it is and which place it has there. The receiver can then tell the
 * delay of every single token and notices one that is lost, out of order, repeated or another stream's.
 *
 * Text wire (chat completions): 22 hexadecimal digits, 12 of nanoseconds, 4 of the stream, 6 of the place.
 * Id wire: one id per token, which the gateway's tokenizer turns into 5 characters. An id holds 17 bits, too few for all
 * three, so seven of eight tokens hold the time (5 digits, steps of 10 us, modulo 1 s) and every eighth holds stream and
 * place: 'q' and 4 digits, (131 * stream + place / 8) modulo 10,000.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum wire { TEXT_WIRE, ID_WIRE };

enum {
    TEXT_WIDTH = 22,
    ID_WIDTH = 5,
    PLACE_EVERY = 8,       /* on the id wire, tokens 7, 15, 23, ... hold the place */
    PLACE_VALUES = 10000,
    TICK_NS = 10000,
    TICKS = 100000,
    MAX_STREAMS = 65536,   /* 4 hexadecimal digits; also the number of acknowledgement counters */
};

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline struct timespec to_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* Bytes that grow. Running out of memory ends the program: nothing measured after it would mean anything. */
struct bytes {
    char *data;
    size_t length, capacity;
};

static inline void reserve(struct bytes *b, size_t more)
{
    if (b->length + more <= b->capacity)
        return;
    b->capacity = (b->length + more) * 2;
    b->data = realloc(b->data, b->capacity);
    if (!b->data)
        abort();
}

static inline void append(struct bytes *b, const char *data, size_t n)
{
    reserve(b, n);
    memcpy(b->data + b->length, data, n);
    b->length += n;
}

static inline void drop_front(struct bytes *b, size_t n)
{
    b->length -= n;
    memmove(b->data, b->data + n, b->length);
}

static inline void write_hex(char *out, uint64_t value, int digits)
{
    while (digits-- > 0) {
        out[digits] = "0123456789abcdef"[value & 15];
        value >>= 4;
    }
}

/* `digits` hexadecimal digits, or false if one of them is none. */
static inline bool read_hex(const char *in, int digits, uint64_t *value)
{
    *value = 0;
    for (int i = 0; i < digits; i++) {
        char c = in[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (d < 0)
            return false;
        *value = *value << 4 | (uint64_t)d;
    }
    return true;
}

static inline bool read_digits(const char *in, int digits, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < digits; i++) {
        if (in[i] < '0' || in[i] > '9')
            return false;
        *value = *value * 10 + (uint32_t)(in[i] - '0');
    }
    return true;
}

static inline void write_text_stamp(char *out, uint64_t ns, uint32_t stream, uint32_t place)
{
    write_hex(out, ns, 12);
    write_hex(out + 12, stream, 4);
    write_hex(out + 16, place, 6);
}

static inline bool holds_place(uint32_t place) { return place % PLACE_EVERY == PLACE_EVERY - 1; }

static inline uint32_t place_value(uint32_t stream, uint32_t place)
{
    return (131 * stream + place / PLACE_EVERY) % PLACE_VALUES;
}

#endif
