/* A mock of vLLM's server, one thread on epoll, cheap enough not to be what a benchmark of gateways measures.
 *
 *   mock --port N [--socket PATH] [--acks FILE] [--time-ids FIRST --place-ids FIRST] [--model NAME]
 *
 *   POST /v1/chat/completions     text wire: streamed as one HTTP chunk and one send() per token, as vLLM's uvicorn does,
 *                                 with a usage chunk where asked for, or with usage in every chunk
 *                                 (continuous_usage_stats), then framed as the gateway does; or a fixed completion at once
 *   POST /inference/v1/generate   id wire, streamed; ids start at --time-ids and --place-ids (wire.h)
 *   GET  /health /version /v1/models /metrics, and what routers ask about a server
 *   GET  /bench/set?key=value&... changes how tokens are sent:
 *          interval_us  time between two tokens of a stream; 0: as fast as they go
 *          groups       streams step in so many groups spread over the interval, as engines that do not step together
 *          batch        tokens of a stream in one send(), where they go as fast as they go
 *          lockstep     1: the next token leaves when the client has acknowledged the one before (needs --acks)
 *          cut          1: every connection that streams is closed, now
 *          fault        none, drop, swap, repeat, foreign or cut, at every `every`th token of a stream
 *   GET  /bench/state             what is running and what was sent
 *
 * A request's `seed` is its stream's number. Streams have max_tokens tokens.
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
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire.h"

enum { MAX_FDS = 65536, MAX_HEAD = 65536, MAX_BODY = 64 << 20, SLEEP_NS = 20000, PROMPT_TOKENS = 48 };
enum fault { NO_FAULT, DROP, SWAP, REPEAT, FOREIGN, CUT };
static const char *const FAULTS[] = {"none", "drop", "swap", "repeat", "foreign", "cut"};

struct connection {
    int fd;
    struct bytes in, out;
    size_t out_sent;
    bool is_blocked; /* unsent bytes wait for EPOLLOUT */
    int slot;        /* place in `running`, -1 when it streams nothing */
    enum wire wire;
    uint32_t stream, tokens, sent, group;
    bool wants_usage, is_counted; /* usage at the end, and in every chunk */
};

static struct settings {
    uint64_t interval_ns;
    uint32_t groups;
    bool lockstep;
    enum fault fault;
    uint32_t every, batch;
} settings = {.groups = 8, .every = 1000, .batch = 1};

static const char *model = "bench/mock-8b";
static uint32_t time_ids, place_ids;
static int epoll;
static struct connection *connections[MAX_FDS], *running[MAX_FDS];
static int running_count;
static uint32_t next_group;
static unsigned long requests, tokens_sent;
static volatile const uint32_t *acks;
static bool is_held; /* what is put is kept for `release` */

/* ------------------------------------------------------------------------------------------------ connections */

static void stop_stream(struct connection *c)
{
    if (c->slot < 0)
        return;
    running[c->slot] = running[--running_count];
    running[c->slot]->slot = c->slot;
    c->slot = -1;
}

static void close_connection(struct connection *c)
{
    stop_stream(c);
    close(c->fd);
    connections[c->fd] = NULL;
    free(c->in.data);
    free(c->out.data);
    free(c);
}

static void watch(struct connection *c)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (c->is_blocked ? EPOLLOUT : 0), .data.fd = c->fd};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
}

/* Sends what the socket takes and keeps the rest. False if the peer is gone. */
static bool put(struct connection *c, const char *data, size_t n)
{
    if (!c->is_blocked && !is_held) {
        ssize_t sent = send(c->fd, data, n, MSG_NOSIGNAL);
        if (sent == (ssize_t)n)
            return true;
        if (sent < 0 && errno != EAGAIN)
            return false;
        data += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
        c->is_blocked = true;
        watch(c);
    }
    append(&c->out, data, n);
    return true;
}

static bool flush(struct connection *c)
{
    while (c->out_sent < c->out.length) {
        ssize_t sent = send(c->fd, c->out.data + c->out_sent, c->out.length - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0)
            return errno == EAGAIN;
        c->out_sent += (size_t)sent;
    }
    c->out.length = c->out_sent = 0;
    c->is_blocked = false;
    watch(c);
    return true;
}

static bool release(struct connection *c)
{
    is_held = false;
    if (c->is_blocked || !c->out.length)
        return true;
    ssize_t sent = send(c->fd, c->out.data, c->out.length, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN)
        return false;
    c->out_sent = sent > 0 ? (size_t)sent : 0;
    c->is_blocked = c->out_sent < c->out.length;
    if (c->is_blocked)
        watch(c);
    else
        c->out.length = c->out_sent = 0;
    return true;
}

static bool put_chunk(struct connection *c, const char *event, size_t n)
{
    char framed[2048];
    int k = snprintf(framed, sizeof framed, "%zx\r\n%.*s\r\n", n, (int)n, event);
    return put(c, framed, (size_t)k);
}

static bool reply(struct connection *c, const char *status, const char *type, const char *body)
{
    char message[8192];
    int k = snprintf(message, sizeof message,
                     "HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s", status, type,
                     strlen(body), body);
    return put(c, message, (size_t)k);
}

static bool reply_json(struct connection *c, const char *body) { return reply(c, "200 OK", "application/json", body); }

/* ----------------------------------------------------------------------------------------------------- tokens */

#define CHAT_HEAD \
    "{\"id\":\"chatcmpl-8d5c1f0a7be94c02b1e6f3a4d9c27e58\",\"object\":\"chat.completion.chunk\",\"created\":1790000000," \
    "\"model\":\"%s\",\"choices\":["

static char chat_chunk[1024]; /* one framed token of the text wire, all but its stamp constant */
static size_t chat_length, chat_stamp;

static void prepare_chat_chunk(void)
{
    char event[900];
    int n = snprintf(event, sizeof event,
                     "data: " CHAT_HEAD "{\"index\":0,\"delta\":{\"content\":\"%0*d\"},\"logprobs\":null,"
                     "\"finish_reason\":null,\"token_ids\":null}]}\n\n", model, TEXT_WIDTH, 0);
    chat_length = (size_t)snprintf(chat_chunk, sizeof chat_chunk, "%x\r\n%s\r\n", n, event);
    chat_stamp = (size_t)(strstr(chat_chunk, "\"content\":\"") - chat_chunk) + strlen("\"content\":\"");
}

/* The gateway's chunk of one token with what was used so far. Three hexadecimal digits hold its length. */
static char counted_chunk[1024];
static size_t counted_length, counted_stamp;

static void prepare_counted_chunk(void)
{
    counted_length = (size_t)snprintf(
        counted_chunk, sizeof counted_chunk,
        "000\r\ndata: " CHAT_HEAD "{\"index\":0,\"delta\":{\"content\":\"%0*d\"},\"logprobs\":null,\"finish_reason\":null}],"
        "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":", model, TEXT_WIDTH, 0, PROMPT_TOKENS);
    counted_stamp = (size_t)(strstr(counted_chunk, "\"content\":\"") - counted_chunk) + strlen("\"content\":\"");
}

static bool send_counted_token(struct connection *c, uint32_t place, uint32_t stream)
{
    size_t n = counted_length;
    n += (size_t)snprintf(counted_chunk + n, sizeof counted_chunk - n, "%u,\"total_tokens\":%u}}\n\n\r\n", place + 1,
                          place + 1 + PROMPT_TOKENS);
    write_hex(counted_chunk, n - 7, 3); /* less the length itself and two ends of lines */
    write_text_stamp(counted_chunk + counted_stamp, now_ns(), stream, place);
    return put(c, counted_chunk, n);
}

static bool send_chat_token(struct connection *c, uint32_t place, uint32_t stream)
{
    if (c->is_counted)
        return send_counted_token(c, place, stream);
    write_text_stamp(chat_chunk + chat_stamp, now_ns(), stream, place);
    return put(c, chat_chunk, chat_length);
}

static uint32_t token_id(uint32_t place, uint32_t stream)
{
    if (holds_place(place))
        return place_ids + place_value(stream, place);
    return time_ids + (uint32_t)(now_ns() / TICK_NS % TICKS);
}

static bool send_id_token(struct connection *c, uint32_t place, uint32_t stream)
{
    char event[512];
    int n = snprintf(event, sizeof event,
                     "data: {\"request_id\":\"generate-tokens-%08x\",\"usage\":null,\"output_mode\":\"tokens\",\"choices\":["
                     "{\"index\":0,\"finish_reason\":%s,\"stop_reason\":null,\"token_ids\":[%u],\"routed_experts\":null,"
                     "\"sampling_mask\":null,\"weight_versions\":null,\"logprobs\":null}]}\n\n",
                     c->stream, place + 1 == c->tokens ? "\"length\"" : "null", token_id(place, stream));
    return put_chunk(c, event, (size_t)n);
}

static bool send_token(struct connection *c, uint32_t place, uint32_t stream)
{
    tokens_sent++;
    return c->wire == TEXT_WIRE ? send_chat_token(c, place, stream) : send_id_token(c, place, stream);
}

/* Of a chunk that counts: what follows its choices. Else they end with it. */
static const char *usage_of(const struct connection *c, uint32_t tokens)
{
    static char usage[128];
    if (!c->is_counted)
        return "";
    snprintf(usage, sizeof usage, ",\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%u,\"total_tokens\":%u}",
             PROMPT_TOKENS, tokens, PROMPT_TOKENS + tokens);
    return usage;
}

static bool send_end(struct connection *c)
{
    char event[1024];
    if (c->wire == TEXT_WIRE) {
        int n = snprintf(event, sizeof event,
                         "data: " CHAT_HEAD "{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
                         "\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}]%s}\n\n",
                         model, usage_of(c, c->tokens));
        if (!put_chunk(c, event, (size_t)n))
            return false;
    }
    if (c->wants_usage) {
        int n = snprintf(event, sizeof event,
                         "data: " CHAT_HEAD "],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%u,"
                         "\"completion_tokens\":%u}}\n\n", model, PROMPT_TOKENS, PROMPT_TOKENS + c->tokens, c->tokens);
        if (!put_chunk(c, event, (size_t)n))
            return false;
    }
    return put_chunk(c, "data: [DONE]\n\n", 14) && put(c, "0\r\n\r\n", 5);
}

/* The faults are there to prove that the client notices them. */
static bool send_faulty(struct connection *c)
{
    uint32_t place = c->sent;
    switch (settings.fault) {
    case SWAP:
        c->sent += 2;
        return send_token(c, place + 1, c->stream) && send_token(c, place, c->stream);
    case REPEAT:
        c->sent++;
        return send_token(c, place, c->stream) && send_token(c, place, c->stream);
    case FOREIGN:
        c->sent++;
        return send_token(c, place, c->stream + 1);
    case CUT:
        return false;
    default:
        c->sent++;
        return true;
    }
}

/* One token further. False if the connection is to be closed. */
static bool step(struct connection *c)
{
    bool is_last_pair = c->sent + 2 >= c->tokens;
    bool is_faulty = settings.fault && !is_last_pair && c->sent % settings.every == settings.every - 1;
    if (is_faulty ? !send_faulty(c) : !send_token(c, c->sent++, c->stream))
        return false;
    if (c->sent < c->tokens)
        return true;
    stop_stream(c);
    return send_end(c);
}

static bool start_stream(struct connection *c)
{
    static const char head[] = "HTTP/1.1 200 OK\r\ndate: Mon, 21 Sep 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
                               "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    char event[512];
    if (!put(c, head, sizeof head - 1))
        return false;
    if (c->wire == TEXT_WIRE) {
        int n = snprintf(event, sizeof event,
                         "data: " CHAT_HEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                         "\"logprobs\":null,\"finish_reason\":null}]%s}\n\n", model, usage_of(c, 0));
        if (!put_chunk(c, event, (size_t)n))
            return false;
    }
    c->sent = 0;
    c->group = next_group++;
    c->slot = running_count;
    running[running_count++] = c;
    return true;
}

/* --------------------------------------------------------------------------------------------------- requests */

static const char *find(const char *body, size_t n, const char *key) { return memmem(body, n, key, strlen(key)); }

static long number_after(const char *body, size_t n, const char *key, long otherwise)
{
    const char *at = find(body, n, key);
    return at ? strtol(at + strlen(key) + strspn(at + strlen(key), " :"), NULL, 10) : otherwise;
}

static bool is_true(const char *body, size_t n, const char *key)
{
    const char *at = find(body, n, key);
    return at && at[strlen(key) + strspn(at + strlen(key), " :")] == 't';
}

static bool answer_whole(struct connection *c)
{
    char body[2048];
    snprintf(body, sizeof body,
             "{\"id\":\"chatcmpl-8d5c1f0a7be94c02b1e6f3a4d9c27e58\",\"object\":\"chat.completion\",\"created\":1790000000,"
             "\"model\":\"%s\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Rivers carry "
             "what the hills let go: sand, leaves, the warmth of a day. Where two of them meet, the slower one gives its "
             "colour to the other for a mile or so, and then nobody can say any more which water came from where.\","
             "\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],\"reasoning\":"
             "null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null}],\"service_tier\":"
             "null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":48,\"total_tokens\":112,\"completion_tokens\":64,"
             "\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"kv_transfer_params\":"
             "null}", model);
    return reply_json(c, body);
}

static bool answer_generation(struct connection *c, enum wire wire, const char *body, size_t n)
{
    c->wire = wire;
    if (wire == ID_WIRE && !find(body, n, "\"token_ids\""))
        return reply(c, "400 Bad Request", "application/json",
                     "{\"error\":{\"message\":\"token_ids: field required\",\"type\":\"Bad Request\",\"code\":400}}");
    if (!is_true(body, n, "\"stream\""))
        return answer_whole(c);
    c->wants_usage = is_true(body, n, "\"include_usage\"");
    c->is_counted = wire == TEXT_WIRE && c->wants_usage && is_true(body, n, "\"continuous_usage_stats\"");
    c->stream = (uint32_t)number_after(body, n, "\"seed\"", 0) % MAX_STREAMS;
    c->tokens = (uint32_t)number_after(body, n, "\"max_tokens\"", number_after(body, n, "\"max_completion_tokens\"", 256));
    return start_stream(c);
}

static void apply(const char *key, const char *value)
{
    if (!strcmp(key, "interval_us"))
        settings.interval_ns = strtoul(value, NULL, 10) * 1000;
    else if (!strcmp(key, "groups") && atoi(value) > 0)
        settings.groups = (uint32_t)atoi(value);
    else if (!strcmp(key, "lockstep"))
        settings.lockstep = atoi(value) && acks;
    else if (!strcmp(key, "every") && atoi(value) > 0)
        settings.every = (uint32_t)atoi(value);
    else if (!strcmp(key, "batch") && atoi(value) > 0)
        settings.batch = (uint32_t)atoi(value);
    else if (!strcmp(key, "cut") && atoi(value))
        while (running_count)
            close_connection(running[running_count - 1]);
    else if (!strcmp(key, "fault"))
        for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++)
            if (!strcmp(value, FAULTS[i]))
                settings.fault = (enum fault)i;
}

static bool answer_state(struct connection *c)
{
    char body[512];
    snprintf(body, sizeof body,
             "{\"interval_us\":%llu,\"groups\":%u,\"lockstep\":%d,\"fault\":\"%s\",\"every\":%u,\"running\":%d,"
             "\"requests\":%lu,\"tokens\":%lu}", (unsigned long long)(settings.interval_ns / 1000), settings.groups,
             settings.lockstep, FAULTS[settings.fault], settings.every, running_count, requests, tokens_sent);
    return reply_json(c, body);
}

static bool answer_settings(struct connection *c, char *query)
{
    query[strcspn(query, " ")] = 0;
    char *rest = NULL;
    for (char *pair = strtok_r(query, "&", &rest); pair; pair = strtok_r(NULL, "&", &rest)) {
        char *value = strchr(pair, '=');
        if (value) {
            *value = 0;
            apply(pair, value + 1);
        }
    }
    return answer_state(c);
}

static bool answer_page(struct connection *c, const char *path)
{
    char body[1024];
    if (!strncmp(path, "/version", 8))
        return reply_json(c, "{\"version\":\"0.24.0\"}");
    if (!strncmp(path, "/v1/models", 10)) {
        snprintf(body, sizeof body, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1790000000,"
                 "\"owned_by\":\"vllm\",\"root\":\"%s\",\"parent\":null,\"max_model_len\":131072}]}", model, model);
        return reply_json(c, body);
    }
    if (!strncmp(path, "/metrics", 8)) {
        snprintf(body, sizeof body, "# TYPE vllm:num_requests_running gauge\n"
                 "vllm:num_requests_running{engine=\"0\",model_name=\"%s\"} %d.0\n"
                 "# TYPE vllm:num_requests_waiting gauge\n"
                 "vllm:num_requests_waiting{engine=\"0\",model_name=\"%s\"} 0.0\n", model, running_count, model);
        return reply(c, "200 OK", "text/plain; version=0.0.4; charset=utf-8", body);
    }
    if (strstr(path, "_info ")) { /* /get_model_info, /server_info and the like: routers that also know SGLang */
        snprintf(body, sizeof body, "{\"model_path\":\"%s\",\"served_model_name\":\"%s\",\"model_id\":\"%s\","
                 "\"is_generation\":true,\"tp_size\":1,\"dp_size\":1}", model, model, model);
        return reply_json(c, body);
    }
    return reply(c, "200 OK", "text/plain", ""); /* /health */
}

static bool answer(struct connection *c, char *head, const char *body, size_t n)
{
    requests++;
    if (!strncmp(head, "POST /v1/chat/completions ", 26))
        return answer_generation(c, TEXT_WIRE, body, n);
    if (!strncmp(head, "POST /inference/v1/generate ", 28))
        return answer_generation(c, ID_WIRE, body, n);
    if (!strncmp(head, "GET /bench/set?", 15))
        return answer_settings(c, head + 15);
    if (!strncmp(head, "GET /bench/state", 16))
        return answer_state(c);
    return answer_page(c, head + strcspn(head, " ") + 1);
}

/* The body of a request whose head ends at `at`: copied out of its chunks, or as it lies there.
 * Returns how long the whole request is, 0 while there is more to come, -1 if it is none. */
static ssize_t read_body(const struct bytes *in, const char *head, size_t at, struct bytes *body)
{
    const char *length = strcasestr(head, "\r\ncontent-length:");
    body->length = 0;
    if (length) {
        size_t n = strtoul(length + 17, NULL, 10);
        if (n > MAX_BODY)
            return -1;
        if (in->length < at + n)
            return 0;
        append(body, in->data + at, n);
        return (ssize_t)(at + n);
    }
    if (!strcasestr(head, "\r\ntransfer-encoding: chunked"))
        return (ssize_t)at;
    for (;;) {
        const char *end = memmem(in->data + at, in->length - at, "\r\n", 2);
        if (!end)
            return 0;
        size_t n = strtoul(in->data + at, NULL, 16), start = (size_t)(end - in->data) + 2;
        if (n > MAX_BODY)
            return -1;
        if (in->length < start + n + 2)
            return 0;
        append(body, in->data + start, n);
        at = start + n + 2;
        if (!n)
            return (ssize_t)at;
    }
}

/* Answers every request that is whole; one at a time, for a stream ends before the next begins. False: close. */
static bool serve(struct connection *c)
{
    static char head[MAX_HEAD + 1];
    static struct bytes body;
    while (c->slot < 0 && c->in.length) {
        const char *end = memmem(c->in.data, c->in.length, "\r\n\r\n", 4);
        if (!end)
            return c->in.length <= MAX_HEAD;
        size_t head_length = (size_t)(end - c->in.data) + 4;
        if (head_length > MAX_HEAD)
            return false;
        memcpy(head, c->in.data, head_length);
        head[head_length] = 0;
        ssize_t used = read_body(&c->in, head, head_length, &body);
        if (used <= 0)
            return used == 0;
        append(&body, "", 1);
        drop_front(&c->in, (size_t)used);
        bool is_last = strcasestr(head, "\r\nconnection: close") != NULL;
        if (!answer(c, head, body.data, body.length - 1) || (is_last && c->slot < 0))
            return false;
    }
    return true;
}

static bool receive(struct connection *c)
{
    for (;;) {
        reserve(&c->in, 16384);
        ssize_t n = recv(c->fd, c->in.data + c->in.length, c->in.capacity - c->in.length, 0);
        if (n < 0)
            return errno == EAGAIN && serve(c);
        if (n == 0)
            return false;
        c->in.length += (size_t)n;
        if (c->in.length < c->in.capacity)
            return serve(c);
    }
}

/* ------------------------------------------------------------------------------------------------------- loop */

static int listeners[2] = {-1, -1}; /* a TCP port, and a socket in the file system */

static void accept_all(int listener)
{
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (fd >= MAX_FDS) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct connection *c = calloc(1, sizeof *c);
        if (!c)
            abort();
        c->fd = fd;
        c->slot = -1;
        connections[fd] = c;
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = fd};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
    }
}

static bool step_batch(struct connection *c, uint32_t tokens)
{
    is_held = tokens > 1;
    for (; tokens && c->slot >= 0; tokens--)
        if (!step(c)) {
            is_held = false;
            return false;
        }
    return release(c);
}

static void advance(struct connection *c, uint32_t tokens)
{
    if (!step_batch(c, tokens) || !serve(c))
        close_connection(c);
}

/* Backwards, for a stream that ends gives its slot to the last one. */
static void step_group(uint32_t group)
{
    for (int i = running_count - 1; i >= 0; i--)
        if (!running[i]->is_blocked && running[i]->group % settings.groups == group)
            advance(running[i], 1);
}

static void step_due(uint64_t *next, uint64_t tick_ns)
{
    static uint32_t group;
    uint64_t now = now_ns();
    for (uint32_t i = 0; *next <= now && i < 4 * settings.groups; i++) {
        group = (group + 1) % settings.groups;
        step_group(group);
        *next += tick_ns;
    }
}

static bool is_acknowledged(const struct connection *c) { return !settings.lockstep || acks[c->stream] >= c->sent; }

static void step_at_will(void)
{
    bool has_stepped = false;
    for (int i = running_count - 1; i >= 0; i--)
        if (!running[i]->is_blocked && is_acknowledged(running[i])) {
            advance(running[i], settings.lockstep ? 1 : settings.batch);
            has_stepped = true;
        }
    if (!has_stepped) { /* the client may have this core too */
        struct timespec pause = to_timespec(SLEEP_NS);
        nanosleep(&pause, NULL);
    }
}

static void handle_event(const struct epoll_event *e)
{
    int fd = e->data.fd;
    if (fd == listeners[0] || fd == listeners[1]) {
        accept_all(fd);
        return;
    }
    struct connection *c = connections[fd];
    if (!c)
        return;
    bool is_alive = !(e->events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP));
    if (is_alive && e->events & EPOLLOUT)
        is_alive = flush(c);
    if (is_alive && e->events & EPOLLIN)
        is_alive = receive(c);
    if (!is_alive)
        close_connection(c);
}

static void run(void)
{
    struct epoll_event events[512];
    uint64_t next = 0;
    for (;;) {
        uint64_t now = now_ns(), wait = 1000000000u, tick = settings.interval_ns / settings.groups;
        bool is_paced = settings.interval_ns > 0;
        if (running_count && is_paced) {
            if (next + 50000000u < now || next > now + 10 * tick)
                next = now + tick; /* nothing ran for a while: the clock starts again */
            wait = next > now ? next - now : 0;
        } else if (running_count)
            wait = 0;
        struct timespec timeout = to_timespec(wait);
        int n = epoll_pwait2(epoll, events, sizeof events / sizeof *events, &timeout, NULL);
        for (int i = 0; i < n; i++)
            handle_event(&events[i]);
        if (running_count && is_paced)
            step_due(&next, tick);
        else if (running_count)
            step_at_will();
    }
}

static int listen_at(int fd, const struct sockaddr *address, socklen_t length)
{
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    if (bind(fd, address, length) || listen(fd, 4096) || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e)) {
        perror("mock: cannot listen");
        exit(1);
    }
    return fd;
}

static int listen_on(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return listen_at(fd, (struct sockaddr *)&address, sizeof address);
}

static int listen_in(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return listen_at(fd, (struct sockaddr *)&address, sizeof address);
}

static void map_acks(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, MAX_STREAMS * sizeof *acks)) {
        perror(path);
        exit(1);
    }
    acks = mmap(NULL, MAX_STREAMS * sizeof *acks, PROT_READ, MAP_SHARED, fd, 0);
}

int main(int count, char **arguments)
{
    static const struct option options[] = {
        {"port", required_argument, NULL, 'p'},      {"acks", required_argument, NULL, 'a'},
        {"time-ids", required_argument, NULL, 't'},  {"place-ids", required_argument, NULL, 'q'},
        {"model", required_argument, NULL, 'm'},     {"socket", required_argument, NULL, 's'},
        {NULL, 0, NULL, 0},
    };
    const char *path = NULL;
    int port = 0, option;
    while ((option = getopt_long(count, arguments, "", options, NULL)) != -1)
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'a': map_acks(optarg); break;
        case 't': time_ids = (uint32_t)atoi(optarg); break;
        case 'q': place_ids = (uint32_t)atoi(optarg); break;
        case 'm': model = optarg; break;
        case 's': path = optarg; break;
        default: return 2;
        }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000); /* 1 us; the default of 50 us would blur the pace */
    prepare_chat_chunk();
    prepare_counted_chunk();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    listeners[0] = listen_on(port);
    if (path)
        listeners[1] = listen_in(path);
    run();
}
