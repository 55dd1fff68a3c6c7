/* A load client for OpenAI's chat endpoint, one thread on epoll. Prints one JSON object.
 *
 *   load --port N [--streams N] [--tokens N] [--whole] [--wire text|ids] [--ramp S] [--warm S] [--window S] [--drain S]
 *        [--model M] [--stop TEXT] [--header "k: v"]... [--acks FILE] [--processes PID,...] [--mock PID,...] [--cpus N,...]
 *        [--probe-ms N] [--intruder FILE --intruder-ms N]
 *
 * Each of N streams is a connection that asks for a chat completion of so many tokens, and for the next when it has
 * ended; with --whole the answers are not streamed. They begin spread over the ramp. After ramp and warm-up the window
 * opens: delays, gaps, latencies and counts are those within it; TTFT and the order of tokens (wire.h) are looked at from
 * first to last. With --drain no stream begins after the window and those that run may end, so that every token that was
 * sent is accounted for.
 *
 * --processes: whose CPU time is read at both ends of the window, and whose memory every second. What else --cpus were
 *              busy with in the window, beside these, the mock and the client, is the CPU of others.
 * --probe-ms: GET /health on a connection of its own at fixed times; what an answer is late by is the server's lag.
 * --intruder: a request body sent as often as --intruder-ms says, beside the streams; "########" in it becomes a number,
 *             so that no two are alike.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"

enum { MAX_PROCESSES = 256, HEAD_SIZE = 4096, LINE_SIZE = 8192, INTRUDERS = 64, MAX_ERRORS = 1000 };
enum role { STREAM, PROBE, INTRUDER };
enum state { CLOSED, IDLE, IN_HEAD, IN_BODY };
enum framing { BY_LENGTH, BY_CHUNKS, BY_END };
enum chunk_part { SIZE_LINE, CHUNK_DATA, CHUNK_END, TRAILER };

struct samples {
    uint64_t *values;
    size_t count, capacity;
};

struct connection {
    int fd;
    enum role role;
    enum state state;
    uint32_t number; /* of the stream; the request's seed */
    /* the answer */
    int status;
    bool is_last; /* the server closes after it */
    const char *unsent;
    size_t unsent_length;
    enum framing framing;
    enum chunk_part part;
    size_t left, trailer_line;
    char head[HEAD_SIZE], line[LINE_SIZE];
    size_t head_length, line_length;
    /* the stream in it */
    uint64_t asked_at, last_token_at, last_sent_at;
    uint32_t place; /* of the token expected next */
    char partial[TEXT_WIDTH];
    size_t partial_length;
    bool has_begun, has_ended, has_failed;
};

static struct options {
    int port, streams, tokens, probe_ms, intruder_ms;
    bool is_whole;
    enum wire wire;
    double ramp_s, warm_s, window_s, drain_s;
    const char *model, *stop;
    char headers[2048];
    struct pids {
        long values[MAX_PROCESSES];
        int count;
    } gateway, mock;
    unsigned long long cpus; /* a bit each */
} options = {.streams = 1, .tokens = 256, .ramp_s = 0.1, .warm_s = 0.5, .window_s = 2, .model = "bench/mock-8b"};

static struct {
    unsigned long requests, tokens, reads;                             /* within the window */
    unsigned long errors, reconnects, unfinished, streams, all_tokens; /* from first to last */
    unsigned long malformed, foreign, reordered, intrusions;
    long lost; /* a token that comes late was counted as lost first */
    char first_error[256];
} tally;

static struct samples latencies, ttfts, delays, gaps, lags;
static struct connection *streams, probe, intruders[INTRUDERS];
static struct bytes intruder;
static volatile uint32_t *acks;
static int epoll;
static bool is_window_open, is_draining;
static uint64_t probe_due, intruder_due;

/* ---------------------------------------------------------------------------------------------------- samples */

static void sample(struct samples *s, uint64_t value)
{
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 1 << 16;
        s->values = realloc(s->values, s->capacity * sizeof *s->values);
        if (!s->values)
            abort();
    }
    s->values[s->count++] = value;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, struct samples *s)
{
    static const struct { const char *name; double share; } points[] = {
        {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}};
    qsort(s->values, s->count, sizeof *s->values, compare);
    printf(",\"%s\":{\"count\":%zu", name, s->count);
    for (size_t i = 0; s->count && i < sizeof points / sizeof *points; i++)
        printf(",\"%s\":%.1f", points[i].name, (double)s->values[(size_t)(points[i].share * (double)(s->count - 1))] / 1000);
    printf("}");
}

static void fail(struct connection *c, const char *what, const char *detail)
{
    tally.errors++;
    if (c)
        c->has_failed = true;
    if (!tally.first_error[0])
        snprintf(tally.first_error, sizeof tally.first_error, "%.100s: %.140s", what, detail);
}

/* --------------------------------------------------------------------------------------------------- processes */

/* Seconds of CPU, user and system, of all threads, those that have ended too; to the nanosecond, where /proc has ticks. */
static double cpu_of(long pid)
{
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid((pid_t)pid, &clock) || clock_gettime(clock, &t))
        return 0;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double resident_kib(long pid)
{
    char path[64], text[128];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%ld/statm", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    sscanf(text, "%*d %ld", &pages);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}

/* Seconds that the CPUs of --cpus, else all, were busy with anything at all. */
static double busy_cpu(void)
{
    char line[512];
    unsigned long long busy = 0;
    FILE *file = fopen("/proc/stat", "re");
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long user, nice, system, idle, waiting, irq, softirq, steal;
        int cpu;
        if (line[3] != ' ' && /* the first line is their sum */
            sscanf(line, "cpu%d %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, &user, &nice, &system, &idle, &waiting,
                   &irq, &softirq, &steal) == 9 && (!options.cpus || (cpu < 64 && options.cpus >> cpu & 1)))
            busy += user + nice + system + irq + softirq + steal;
    }
    if (file)
        fclose(file);
    return (double)busy / (double)sysconf(_SC_CLK_TCK);
}

struct usage {
    double gateway_s, mock_s, client_s, busy_s, rss_kib;
};

static struct usage read_usage(void)
{
    struct usage u = {0};
    struct rusage self;
    for (int i = 0; i < options.gateway.count; i++) {
        u.gateway_s += cpu_of(options.gateway.values[i]);
        u.rss_kib += resident_kib(options.gateway.values[i]);
    }
    for (int i = 0; i < options.mock.count; i++)
        u.mock_s += cpu_of(options.mock.values[i]);
    u.busy_s = busy_cpu();
    getrusage(RUSAGE_SELF, &self);
    u.client_s = (double)(self.ru_utime.tv_sec + self.ru_stime.tv_sec) +
                 (double)(self.ru_utime.tv_usec + self.ru_stime.tv_usec) / 1e6;
    return u;
}

/* ------------------------------------------------------------------------------------------------------ tokens */

static void account_place(struct connection *c, uint32_t place)
{
    if (place < c->place) {
        tally.reordered++;
        tally.lost--;
        return;
    }
    tally.lost += (long)(place - c->place);
    c->place = place + 1;
}

static void account_time(struct connection *c, uint64_t sent_at, uint64_t now)
{
    uint64_t delay = now > sent_at ? now - sent_at : 0;
    if (is_window_open) {
        sample(&delays, delay);
        if (c->last_token_at)
            sample(&gaps, now - c->last_token_at);
    }
}

static bool read_text_token(struct connection *c, const char *text, uint64_t now)
{
    uint64_t sent_at, stream, place, mask = (1ull << 48) - 1;
    if (!read_hex(text, 12, &sent_at) || !read_hex(text + 12, 4, &stream) || !read_hex(text + 16, 6, &place))
        return false;
    if (stream != c->number)
        tally.foreign++;
    account_place(c, (uint32_t)place);
    account_time(c, now - ((now - sent_at) & mask), now);
    return true;
}

/* The place that a value stands for, near the one expected; that one plus PLACE_VALUES if it is none of this stream's. */
static uint32_t nearest_place(const struct connection *c, uint32_t value)
{
    uint32_t expected = c->place / PLACE_EVERY;
    for (uint32_t off = 0; off < 64; off++) {
        uint32_t places[] = {(expected + off) * PLACE_EVERY + PLACE_EVERY - 1,
                             off <= expected ? (expected - off) * PLACE_EVERY + PLACE_EVERY - 1 : 0};
        for (int i = 0; i < 2; i++)
            if (holds_place(places[i]) && place_value(c->number, places[i]) == value)
                return places[i];
    }
    return c->place + PLACE_VALUES;
}

static void account_place_token(struct connection *c, uint32_t value)
{
    uint32_t place = nearest_place(c, value);
    if (place == c->place + PLACE_VALUES)
        tally.foreign++;
    else if (place >= c->place) {
        account_place(c, place);
        return;
    } else { /* the same place again, or more tokens before it than were sent */
        tally.reordered++;
        c->place = place + 1;
        return;
    }
    c->place++;
}

/* The stamp is modulo 1 s: the latest moment it can mean for a stream's first token, and from then on the first one
 * after the token before. One that goes back in time comes out as a leap of nearly a second. */
static uint64_t unfold(const struct connection *c, uint32_t tick, uint64_t now)
{
    const uint64_t second = (uint64_t)TICKS * TICK_NS;
    uint64_t stamp = (uint64_t)tick * TICK_NS;
    if (!c->last_sent_at)
        return now - (now - stamp) % second;
    return c->last_sent_at + (stamp - c->last_sent_at % second + second) % second;
}

static bool read_id_token(struct connection *c, const char *text, uint64_t now)
{
    uint32_t value;
    if (text[0] == 'q' && read_digits(text + 1, 4, &value)) {
        account_place_token(c, value);
        if (is_window_open && c->last_token_at)
            sample(&gaps, now - c->last_token_at);
        return true;
    }
    if (!read_digits(text, 5, &value))
        return false;
    if (holds_place(c->place)) { /* one too many: the place that follows says what happened */
        tally.reordered++;
        return true;
    }
    uint64_t sent_at = unfold(c, value, now);
    if (c->last_sent_at && sent_at > c->last_sent_at + (uint64_t)TICKS * TICK_NS / 10 * 9)
        tally.reordered++;
    else {
        c->last_sent_at = sent_at;
        account_time(c, sent_at + TICK_NS / 2, now); /* the stamp was rounded down */
    }
    c->place++;
    return true;
}

static void read_token(struct connection *c, const char *text, uint64_t now)
{
    bool is_read = options.wire == TEXT_WIRE ? read_text_token(c, text, now) : read_id_token(c, text, now);
    if (!is_read)
        tally.malformed++;
    tally.all_tokens++;
    tally.tokens += is_window_open;
    c->last_token_at = now;
    if (acks)
        acks[c->number] = c->place;
}

/* Gateways may join what arrived together or cut where they like, so tokens are taken by their width. */
static void read_content(struct connection *c, const char *text, size_t n, uint64_t now)
{
    size_t width = options.wire == TEXT_WIRE ? TEXT_WIDTH : ID_WIDTH;
    while (n) {
        size_t taken = width - c->partial_length < n ? width - c->partial_length : n;
        memcpy(c->partial + c->partial_length, text, taken);
        c->partial_length += taken;
        text += taken;
        n -= taken;
        if (c->partial_length == width) {
            read_token(c, c->partial, now);
            c->partial_length = 0;
        }
    }
}

/* The string after "content": if there is one; its text is stamps, so nothing in it is escaped. */
static void read_json(struct connection *c, uint64_t now)
{
    static const char key[] = "\"content\":";
    c->line[c->line_length] = 0;
    const char *at = memmem(c->line, c->line_length, key, sizeof key - 1);
    if (!at) {
        if (memmem(c->line, c->line_length, "\"error\"", 7))
            fail(c, "error event", c->line);
        return;
    }
    at += sizeof key - 1;
    at += strspn(at, " ");
    if (*at == '"')
        read_content(c, at + 1, strcspn(at + 1, "\""), now);
}

static void read_line(struct connection *c, uint64_t now)
{
    if (c->line_length < 6 || memcmp(c->line, "data:", 5))
        return;
    if (!c->has_begun) {
        c->has_begun = true;
        if (c->role == STREAM)
            sample(&ttfts, now - c->asked_at);
    }
    if (memmem(c->line, c->line_length < 16 ? c->line_length : 16, "[DONE]", 6))
        c->has_ended = true;
    else if (c->role == STREAM)
        read_json(c, now);
}

static void keep(struct connection *c, const char *data, size_t n)
{
    size_t room = LINE_SIZE - 1 - c->line_length;
    memcpy(c->line + c->line_length, data, n < room ? n : room);
    c->line_length += n < room ? n : room;
}

static void read_events(struct connection *c, const char *data, size_t n, uint64_t now)
{
    const char *end;
    while ((end = memchr(data, '\n', n))) {
        keep(c, data, (size_t)(end - data));
        if (c->line_length && c->line[c->line_length - 1] == '\r')
            c->line_length--;
        read_line(c, now);
        c->line_length = 0;
        n -= (size_t)(end - data) + 1;
        data = end + 1;
    }
    keep(c, data, n);
}

/* -------------------------------------------------------------------------------------------------------- HTTP */

static void open_connection(struct connection *c);

static void watch(struct connection *c)
{
    struct epoll_event e = {.events = EPOLLIN | (c->unsent_length ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
}

/* What the socket does not take at once, which is an intruder's body, is sent when it does: nothing may stop the others.
 * `data` has to live until then. */
static void send_all(struct connection *c, const char *data, size_t n)
{
    bool was_waiting = c->unsent_length > 0;
    ssize_t sent = send(c->fd, data, n, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        fail(c, "send", strerror(errno));
        return;
    }
    c->unsent = data + (sent > 0 ? sent : 0);
    c->unsent_length = n - (sent > 0 ? (size_t)sent : 0);
    if (c->unsent_length && c->role != INTRUDER) {
        c->unsent_length = 0;
        fail(c, "send", "the server does not read");
    }
    if (was_waiting || c->unsent_length)
        watch(c);
}

static void begin_answer(struct connection *c)
{
    c->state = IN_HEAD;
    c->head_length = c->line_length = c->partial_length = 0;
    c->place = 0;
    c->last_token_at = c->last_sent_at = 0;
    c->has_begun = c->has_ended = c->has_failed = false;
    if (c->role == STREAM && acks)
        acks[c->number] = 0;
    c->asked_at = now_ns();
}

static void post(struct connection *c, const char *body, size_t n)
{
    char head[4096];
    int k = snprintf(head, sizeof head,
                     "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
                     "accept: */*\r\nauthorization: Bearer sk-bench\r\n%scontent-length: %zu\r\n\r\n",
                     options.port, options.headers, n);
    begin_answer(c);
    if (k + n > 16384) {
        send_all(c, head, (size_t)k);
        send_all(c, body, n);
        return;
    }
    char message[20480];
    memcpy(message, head, (size_t)k);
    memcpy(message + k, body, n);
    send_all(c, message, (size_t)k + n);
}

static void ask(struct connection *c)
{
    char body[4096], stop[512] = "";
    if (options.stop)
        snprintf(stop, sizeof stop, "\"stop\":[\"%s\"],", options.stop);
    int n = snprintf(body, sizeof body,
                     "{\"model\":\"%s\",\"messages\":[{\"role\":\"system\",\"content\":\"You answer questions about rivers, "
                     "in one paragraph of plain words.\"},{\"role\":\"user\",\"content\":\"Where two rivers of different "
                     "colour meet, how far downstream can one still tell the water of the one from that of the other, and "
                     "why?\"}],\"max_tokens\":%d,\"temperature\":0.7,\"seed\":%u,%s\"stream\":%s}",
                     options.model, options.tokens, c->number, stop, options.is_whole ? "false" : "true");
    post(c, body, (size_t)n);
}

static void ask_health(struct connection *c)
{
    char head[256];
    int n = snprintf(head, sizeof head, "GET /health HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n", options.port);
    begin_answer(c);
    send_all(c, head, (size_t)n);
}

static void close_connection(struct connection *c)
{
    if (c->state != CLOSED)
        close(c->fd);
    c->state = CLOSED;
    c->unsent_length = 0;
}

/* An answer to a probe stands for every moment at which one was due and could not be asked. */
static void take_probe(uint64_t now)
{
    const uint64_t period = (uint64_t)options.probe_ms * 1000000u;
    for (; probe_due <= now; probe_due += period)
        if (is_window_open)
            sample(&lags, now - probe_due);
}

static void check_stream(struct connection *c)
{
    if (options.is_whole) {
        if (options.wire == ID_WIRE)
            read_json(c, c->asked_at);
    } else if (!c->has_ended && !c->has_failed) {
        tally.unfinished++;
        fail(c, "a stream ended without [DONE]", c->line);
    }
    if (!options.is_whole || options.wire == ID_WIRE) {
        tally.streams++;
        if (!c->has_failed)
            tally.lost += (long)options.tokens - (long)c->place;
    }
}

static void finish_stream(struct connection *c, uint64_t now)
{
    if (c->status != 200) {
        c->head[c->head_length < HEAD_SIZE ? c->head_length : HEAD_SIZE - 1] = 0;
        fail(c, c->head, c->line);
    } else {
        check_stream(c);
        if (is_window_open) {
            tally.requests++;
            sample(&latencies, now - c->asked_at);
        }
    }
}

static void finish(struct connection *c, uint64_t now)
{
    if (c->role == STREAM)
        finish_stream(c, now);
    else if (c->status != 200)
        fail(c, c->role == PROBE ? "probe" : "intruder", c->head);
    else if (c->role == PROBE)
        take_probe(now);
    else
        tally.intrusions++;
    bool must_close = c->is_last || c->framing == BY_END;
    if (must_close)
        close_connection(c);
    else
        c->state = IDLE;
    if (c->role != STREAM || is_draining || tally.errors >= MAX_ERRORS)
        return;
    if (must_close) {
        tally.reconnects++;
        open_connection(c);
    } else
        ask(c);
}

static void take(struct connection *c, const char *data, size_t n, uint64_t now)
{
    if (c->status == 200 && c->role != PROBE && !(options.is_whole && c->role == STREAM))
        read_events(c, data, n, now);
    else
        keep(c, data, n);
}

static void read_size(struct connection *c, char ch)
{
    int digit = ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
    if (ch == '\n') {
        c->part = c->left ? CHUNK_DATA : TRAILER;
        c->trailer_line = 0;
    } else if (digit >= 0)
        c->left = c->left * 16 + (size_t)digit;
}

/* True when the last chunk and its trailer are read. */
static bool read_chunks(struct connection *c, const char *data, size_t n, uint64_t now)
{
    while (n) {
        if (c->part == CHUNK_DATA) {
            size_t taken = n < c->left ? n : c->left;
            take(c, data, taken, now);
            data += taken;
            n -= taken;
            c->left -= taken;
            if (!c->left)
                c->part = CHUNK_END;
            continue;
        }
        char ch = *data++;
        n--;
        if (c->part == SIZE_LINE)
            read_size(c, ch);
        else if (c->part == CHUNK_END && ch == '\n')
            c->part = SIZE_LINE;
        else if (c->part == TRAILER && ch == '\n') {
            if (!c->trailer_line)
                return true;
            c->trailer_line = 0;
        } else if (c->part == TRAILER && ch != '\r')
            c->trailer_line++;
    }
    return false;
}

/* True when the answer is complete. */
static bool read_body(struct connection *c, const char *data, size_t n, uint64_t now)
{
    if (c->framing == BY_CHUNKS)
        return read_chunks(c, data, n, now);
    size_t taken = c->framing == BY_END || n < c->left ? n : c->left;
    take(c, data, taken, now);
    if (c->framing == BY_END)
        return false;
    c->left -= taken;
    return c->left == 0;
}

static void read_head(struct connection *c)
{
    const char *length = strcasestr(c->head, "\r\ncontent-length:");
    c->status = atoi(c->head + 9);
    c->is_last = strcasestr(c->head, "\r\nconnection: close") != NULL;
    c->state = IN_BODY;
    c->part = SIZE_LINE;
    c->left = 0;
    if (strcasestr(c->head, "\r\ntransfer-encoding: chunked"))
        c->framing = BY_CHUNKS;
    else if (length) {
        c->framing = BY_LENGTH;
        c->left = strtoul(length + 17, NULL, 10);
    } else
        c->framing = BY_END;
}

static void receive(struct connection *c, const char *data, size_t n, uint64_t now)
{
    if (c->state == IDLE) {
        fail(c, "bytes that nobody asked for", "");
        close_connection(c);
        return;
    }
    if (c->state == IN_HEAD) {
        size_t room = HEAD_SIZE - 1 - c->head_length, before = c->head_length;
        size_t taken = n < room ? n : room;
        memcpy(c->head + before, data, taken);
        c->head_length += taken;
        c->head[c->head_length] = 0;
        char *end = strstr(c->head, "\r\n\r\n");
        if (!end)
            return;
        end[2] = 0;
        size_t used = (size_t)(end + 4 - c->head) - before;
        data += used;
        n -= used;
        read_head(c);
        if (c->framing == BY_LENGTH && !c->left) {
            finish(c, now);
            return;
        }
    }
    if (n && read_body(c, data, n, now))
        finish(c, now);
}

static void end_of_connection(struct connection *c, const char *cause, uint64_t now)
{
    if (c->state == IN_BODY && c->framing == BY_END) {
        finish(c, now);
        return;
    }
    bool was_idle = c->state == IDLE;
    close_connection(c);
    if (was_idle)
        return;
    tally.unfinished += c->role == STREAM;
    fail(c, "the connection was lost", cause);
    if (c->role == STREAM && !is_draining && tally.errors < MAX_ERRORS) {
        tally.reconnects++;
        open_connection(c);
    }
}

static bool dial(struct connection *c)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) {
        fail(c, "connect", strerror(errno));
        close(c->fd);
        return false;
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
    c->state = IDLE;
    return true;
}

static void open_connection(struct connection *c)
{
    if (dial(c))
        ask(c);
}

/* ------------------------------------------------------------------------------------------------------- loop */

static void start_probe(uint64_t now)
{
    if (probe.state == CLOSED && !dial(&probe))
        return;
    if (probe.state == IDLE && now >= probe_due)
        ask_health(&probe);
}

static void start_intruder(uint64_t now)
{
    static unsigned number;
    intruder_due = now + (uint64_t)options.intruder_ms * 1000000u;
    for (int i = 0; i < INTRUDERS; i++) {
        struct connection *c = &intruders[i];
        if (c->state != IDLE && (c->state != CLOSED || !dial(c)))
            continue;
        char *place = memmem(intruder.data, intruder.length, "########", 8), text[9];
        static char *marked;
        marked = place ? place : marked;
        if (marked) {
            snprintf(text, sizeof text, "%08u", number++ * 7919 + (unsigned)getpid());
            memcpy(marked, text, 8);
        }
        post(c, intruder.data, intruder.length);
        return;
    }
    fail(NULL, "intruder", "none of them is answered any more");
}

static uint64_t start_due(uint64_t now, uint64_t started_at, int *opened)
{
    uint64_t next = UINT64_MAX;
    for (; *opened < options.streams; ++*opened) {
        uint64_t due = started_at + (uint64_t)(options.ramp_s * 1e9 * *opened / options.streams);
        if (due > now) {
            next = due;
            break;
        }
        open_connection(&streams[*opened]);
    }
    if (options.probe_ms && !is_draining) {
        if (now >= probe_due && probe.state <= IDLE)
            start_probe(now);
        if (probe.state == IDLE && probe_due < next)
            next = probe_due;
    }
    if (options.intruder_ms && !is_draining && *opened == options.streams) {
        if (now >= intruder_due)
            start_intruder(now);
        next = intruder_due < next ? intruder_due : next;
    }
    return next;
}

static void wait_for_answers(uint64_t until)
{
    static char data[1 << 18];
    struct epoll_event events[1024];
    uint64_t now = now_ns();
    struct timespec timeout = to_timespec(until > now ? until - now : 0);
    int n = epoll_pwait2(epoll, events, sizeof events / sizeof *events, &timeout, NULL);
    for (int i = 0; i < n; i++) {
        struct connection *c = events[i].data.ptr;
        if (c->state == CLOSED)
            continue;
        if (c->unsent_length)
            send_all(c, c->unsent, c->unsent_length);
        ssize_t got = recv(c->fd, data, sizeof data, 0);
        now = now_ns();
        if (got > 0) {
            tally.reads += is_window_open;
            receive(c, data, (size_t)got, now);
        } else if (got == 0 || errno != EAGAIN)
            end_of_connection(c, got ? strerror(errno) : "closed by the server", now);
    }
}

static bool is_streaming(void)
{
    for (int i = 0; i < options.streams; i++)
        if (streams[i].state > IDLE)
            return true;
    return false;
}

struct record {
    struct usage idle, start, end;
    double window_s, peak_kib;
};

static void run_until(uint64_t until, uint64_t started_at, int *opened, double *peak_kib)
{
    uint64_t look_at = now_ns() + 1000000000u;
    for (;;) {
        uint64_t now = now_ns();
        if (now >= until || (is_draining && !is_streaming()))
            return;
        uint64_t next = start_due(now, started_at, opened);
        if (now >= look_at) {
            double kib = read_usage().rss_kib;
            *peak_kib = kib > *peak_kib ? kib : *peak_kib;
            look_at = now + 1000000000u;
        }
        next = next < until ? next : until;
        wait_for_answers(next < look_at ? next : look_at);
    }
}

static struct record run(void)
{
    struct record r = {.idle = read_usage()};
    uint64_t started_at = now_ns();
    int opened = 0;
    double ignored = 0;
    probe_due = intruder_due = started_at;
    run_until(started_at + (uint64_t)((options.ramp_s + options.warm_s) * 1e9), started_at, &opened, &ignored);
    r.start = read_usage();
    r.peak_kib = r.start.rss_kib;
    uint64_t from = now_ns();
    is_window_open = true;
    run_until(from + (uint64_t)(options.window_s * 1e9), started_at, &opened, &r.peak_kib);
    is_window_open = false;
    r.end = read_usage();
    r.peak_kib = r.end.rss_kib > r.peak_kib ? r.end.rss_kib : r.peak_kib;
    r.window_s = (double)(now_ns() - from) / 1e9;
    if (options.drain_s > 0) {
        is_draining = true;
        run_until(now_ns() + (uint64_t)(options.drain_s * 1e9), started_at, &opened, &ignored);
        for (int i = 0; i < options.streams; i++)
            if (streams[i].state > IDLE) {
                tally.unfinished++;
                fail(&streams[i], "a stream did not end", "");
            }
    }
    return r;
}

static void print_text(const char *name, const char *text)
{
    printf(",\"%s\":\"", name);
    for (; *text; text++)
        putchar(*text == '"' || *text == '\\' || (unsigned char)*text < 32 || (unsigned char)*text > 126 ? ' ' : *text);
    putchar('"');
}

static void print_result(const struct record *r)
{
    printf("{\"window_s\":%.4f,\"requests\":%lu,\"tokens\":%lu,\"reads\":%lu", r->window_s, tally.requests, tally.tokens,
           tally.reads);
    printf(",\"errors\":%lu,\"reconnects\":%lu,\"unfinished\":%lu,\"malformed\":%lu,\"foreign\":%lu", tally.errors,
           tally.reconnects, tally.unfinished, tally.malformed, tally.foreign);
    printf(",\"lost\":%ld,\"reordered\":%lu,\"streams_ended\":%lu,\"all_tokens\":%lu,\"intrusions\":%lu", tally.lost,
           tally.reordered, tally.streams, tally.all_tokens, tally.intrusions);
    print_text("first_error", tally.first_error);
    print_samples("latency_us", &latencies);
    print_samples("ttft_us", &ttfts);
    print_samples("delay_us", &delays);
    print_samples("gap_us", &gaps);
    print_samples("lag_us", &lags);
    double ours = r->end.gateway_s - r->start.gateway_s + r->end.mock_s - r->start.mock_s + r->end.client_s - r->start.client_s;
    double others = r->end.busy_s - r->start.busy_s - ours;
    printf(",\"other_cpu_s\":%.3f", others > 0 ? others : 0);
    printf(",\"cpu_s\":%.6f,\"mock_cpu_s\":%.6f,\"client_cpu_s\":%.6f", r->end.gateway_s - r->start.gateway_s,
           r->end.mock_s - r->start.mock_s, r->end.client_s - r->start.client_s);
    printf(",\"idle_rss_kib\":%.0f,\"peak_rss_kib\":%.0f}\n", r->idle.rss_kib, r->peak_kib);
}

/* ----------------------------------------------------------------------------------------------------- options */

static void read_pids(char *list, struct pids *pids)
{
    char *rest = NULL;
    for (char *pid = strtok_r(list, ",", &rest); pid && pids->count < MAX_PROCESSES; pid = strtok_r(NULL, ",", &rest))
        pids->values[pids->count++] = atol(pid);
}

static void read_cpus(char *list)
{
    char *rest = NULL;
    for (char *cpu = strtok_r(list, ",", &rest); cpu; cpu = strtok_r(NULL, ",", &rest))
        if (atoi(cpu) < 64)
            options.cpus |= 1ull << atoi(cpu);
}

static void add_header(const char *header)
{
    size_t n = strlen(options.headers);
    snprintf(options.headers + n, sizeof options.headers - n, "%s\r\n", header);
}

static void read_file(const char *path, struct bytes *into)
{
    char part[65536];
    size_t n;
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    while ((n = fread(part, 1, sizeof part, file)))
        append(into, part, n);
    fclose(file);
}

static void map_acks(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, MAX_STREAMS * sizeof *acks)) {
        perror(path);
        exit(1);
    }
    acks = mmap(NULL, MAX_STREAMS * sizeof *acks, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static bool take_option(int option)
{
    switch (option) {
    case 'p': options.port = atoi(optarg); break;
    case 's': options.streams = atoi(optarg); break;
    case 'n': options.tokens = atoi(optarg); break;
    case 'W': options.is_whole = true; break;
    case 'w': options.wire = strcmp(optarg, "ids") ? TEXT_WIRE : ID_WIRE; break;
    case 'r': options.ramp_s = atof(optarg); break;
    case 'u': options.warm_s = atof(optarg); break;
    case 't': options.window_s = atof(optarg); break;
    case 'd': options.drain_s = atof(optarg); break;
    case 'm': options.model = optarg; break;
    case 'S': options.stop = optarg; break;
    case 'H': add_header(optarg); break;
    case 'a': map_acks(optarg); break;
    case 'g': read_pids(optarg, &options.gateway); break;
    case 'c': read_cpus(optarg); break;
    case 'k': read_pids(optarg, &options.mock); break;
    case 'P': options.probe_ms = atoi(optarg); break;
    case 'i': read_file(optarg, &intruder); break;
    case 'I': options.intruder_ms = atoi(optarg); break;
    default: return false;
    }
    return true;
}

int main(int count, char **arguments)
{
    static const struct option names[] = {
        {"port", required_argument, NULL, 'p'},      {"streams", required_argument, NULL, 's'},
        {"tokens", required_argument, NULL, 'n'},    {"whole", no_argument, NULL, 'W'},
        {"wire", required_argument, NULL, 'w'},      {"ramp", required_argument, NULL, 'r'},
        {"warm", required_argument, NULL, 'u'},      {"window", required_argument, NULL, 't'},
        {"drain", required_argument, NULL, 'd'},     {"model", required_argument, NULL, 'm'},
        {"stop", required_argument, NULL, 'S'},      {"header", required_argument, NULL, 'H'},
        {"acks", required_argument, NULL, 'a'},      {"processes", required_argument, NULL, 'g'},
        {"mock", required_argument, NULL, 'k'},      {"probe-ms", required_argument, NULL, 'P'},
        {"cpus", required_argument, NULL, 'c'},
        {"intruder", required_argument, NULL, 'i'},  {"intruder-ms", required_argument, NULL, 'I'},
        {NULL, 0, NULL, 0},
    };
    int option;
    while ((option = getopt_long(count, arguments, "", names, NULL)) != -1)
        if (!take_option(option))
            return 2;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    streams = calloc((size_t)options.streams, sizeof *streams);
    if (!streams)
        abort();
    for (int i = 0; i < options.streams; i++)
        streams[i].number = (uint32_t)i % MAX_STREAMS;
    probe.role = PROBE;
    for (int i = 0; i < INTRUDERS; i++)
        intruders[i].role = INTRUDER;
    struct record r = run();
    print_result(&r);
    return 0;
}
