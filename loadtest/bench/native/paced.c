/* A mock of vLLM's chat endpoint in which each request keeps a clock of its own: an engine whose speed is known exactly.
 *
 *   paced --port N [--model NAME] [--ttft-us N] [--interval-us N]
 *
 *   POST /v1/chat/completions  streamed: the first token leaves `ttft-us` after the request was read, each further one
 *                              `interval-us` after the one before, max_tokens of them, whoever else is being answered
 *   GET  /v1/models /health    what load testers ask first
 *   GET  /paced/state          what was sent since the last time this was asked, and how late
 *
 * Events are vLLM's: the role comes with the first token, finish_reason with the last one, the usage in a chunk of its own
 * where asked for, in every chunk with continuous_usage_stats. Every token is one HTTP chunk and one send().
 * Due times are counted from the request and not from the event before, so lateness does not add up.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"

enum { MAX_FDS = 4096, MAX_HEAD = 65536, MAX_BODY = 16 << 20, PROMPT_TOKENS = 64 };

struct connection {
    int fd;
    struct bytes in, out;
    size_t out_sent;
    bool is_streaming, wants_usage, wants_counts;
    uint64_t due_ns; /* when the next token is to leave */
    uint32_t tokens, sent;
};

static const char *model = "bench/paced";
static uint64_t ttft_ns = 200000000, interval_ns = 20000000;
static int epoll, highest_fd;
static struct connection *connections[MAX_FDS];
static struct {
    unsigned long requests, tokens, unfinished;
    uint64_t late_ns, latest_ns;
} state;

/* ------------------------------------------------------------------------------------------------ connections */

static void close_connection(struct connection *c)
{
    state.unfinished += c->is_streaming;
    close(c->fd);
    connections[c->fd] = NULL;
    free(c->in.data);
    free(c->out.data);
    free(c);
}

/* Sends what the socket takes and keeps the rest until it takes more. False if the peer is gone. */
static bool flush(struct connection *c)
{
    while (c->out_sent < c->out.length) {
        ssize_t sent = send(c->fd, c->out.data + c->out_sent, c->out.length - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return false;
        if (sent < 0)
            break;
        c->out_sent += (size_t)sent;
    }
    bool is_blocked = c->out_sent < c->out.length;
    if (!is_blocked)
        c->out.length = c->out_sent = 0;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (is_blocked ? EPOLLOUT : 0), .data.fd = c->fd};
    return epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e) == 0;
}

static bool reply(struct connection *c, const char *status, const char *body)
{
    char message[2048];
    int k = snprintf(message, sizeof message,
                     "HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                     status, strlen(body), body);
    append(&c->out, message, (size_t)k);
    return flush(c);
}

/* ----------------------------------------------------------------------------------------------------- tokens */

static void append_chunk(struct connection *c, const char *choices, const char *usage)
{
    char event[1024], framed[1100];
    int n = snprintf(event, sizeof event,
                     "data: {\"id\":\"chatcmpl-8d5c1f0a7be94c02b1e6f3a4d9c27e58\",\"object\":\"chat.completion.chunk\","
                     "\"created\":1790000000,\"model\":\"%s\",\"choices\":[%s]%s}\n\n", model, choices, usage);
    int k = snprintf(framed, sizeof framed, "%x\r\n%s\r\n", n, event);
    append(&c->out, framed, (size_t)k);
}

static void append_usage(struct connection *c, const char *choices)
{
    char usage[160];
    snprintf(usage, sizeof usage, ",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%u,\"completion_tokens\":%u}",
             PROMPT_TOKENS, PROMPT_TOKENS + c->sent, c->sent);
    append_chunk(c, choices, usage);
}

static void append_choice(struct connection *c, const char *delta, const char *finish_reason)
{
    char choice[256];
    snprintf(choice, sizeof choice, "{\"index\":0,\"delta\":{%s},\"logprobs\":null,\"finish_reason\":%s}", delta,
             finish_reason);
    if (c->wants_counts)
        append_usage(c, choice);
    else
        append_chunk(c, choice, "");
}

static void append_token(struct connection *c)
{
    if (c->sent == 0)
        append_choice(c, "\"role\":\"assistant\",\"content\":\"\"", "null");
    c->sent++;
    append_choice(c, "\"content\":\" token\"", c->sent == c->tokens ? "\"length\"" : "null");
}

static void append_end(struct connection *c)
{
    static const char done[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    if (c->wants_usage)
        append_usage(c, "");
    append(&c->out, done, sizeof done - 1);
    c->is_streaming = false;
}

/* The token that is due. False if the connection is to be closed. */
static bool send_token(struct connection *c, uint64_t now)
{
    uint64_t late_ns = now - c->due_ns;
    state.tokens++;
    state.late_ns += late_ns;
    state.latest_ns = late_ns > state.latest_ns ? late_ns : state.latest_ns;
    append_token(c);
    c->due_ns += interval_ns;
    bool is_sent = flush(c);
    if (c->sent < c->tokens || !is_sent)
        return is_sent;
    append_end(c); /* after the last token's own send(), as from a server that writes event by event */
    return flush(c);
}

/* --------------------------------------------------------------------------------------------------- requests */

static const char *value_of(const char *body, const char *key)
{
    const char *at = strstr(body, key);
    return at ? at + strlen(key) + strspn(at + strlen(key), " :") : NULL;
}

static bool is_true(const char *body, const char *key)
{
    const char *value = value_of(body, key);
    return value && *value == 't';
}

static bool answer_chat(struct connection *c, const char *body, uint64_t now)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    const char *tokens = value_of(body, "\"max_completion_tokens\"");
    tokens = tokens ? tokens : value_of(body, "\"max_tokens\"");
    if (!is_true(body, "\"stream\"") || !tokens || atoi(tokens) < 1)
        return reply(c, "400 Bad Request", "{\"error\":{\"message\":\"this engine streams, max_tokens or "
                                           "max_completion_tokens of them\",\"type\":\"BadRequestError\",\"code\":400}}");
    state.requests++;
    c->wants_usage = is_true(body, "\"include_usage\"");
    c->wants_counts = is_true(body, "\"continuous_usage_stats\"");
    c->tokens = (uint32_t)atoi(tokens);
    c->sent = 0;
    c->due_ns = now + ttft_ns;
    c->is_streaming = true;
    append(&c->out, head, sizeof head - 1);
    return flush(c);
}

static bool answer_models(struct connection *c)
{
    char body[512];
    snprintf(body, sizeof body, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1790000000,"
             "\"owned_by\":\"vllm\",\"root\":\"%s\",\"parent\":null,\"max_model_len\":131072}]}", model, model);
    return reply(c, "200 OK", body);
}

static bool answer_state(struct connection *c)
{
    char body[512];
    snprintf(body, sizeof body, "{\"requests\":%lu,\"tokens\":%lu,\"unfinished\":%lu,\"mean_late_us\":%.1f,\"max_late_us\":%.1f}",
             state.requests, state.tokens, state.unfinished,
             state.tokens ? (double)state.late_ns / 1e3 / (double)state.tokens : 0.0, (double)state.latest_ns / 1e3);
    memset(&state, 0, sizeof state);
    return reply(c, "200 OK", body);
}

static bool answer(struct connection *c, const char *head, const char *body, uint64_t now)
{
    if (!strncmp(head, "POST /v1/chat/completions ", 26))
        return answer_chat(c, body, now);
    if (!strncmp(head, "GET /v1/models ", 15))
        return answer_models(c);
    if (!strncmp(head, "GET /paced/state ", 17))
        return answer_state(c);
    if (!strncmp(head, "GET /health ", 12))
        return reply(c, "200 OK", "");
    return reply(c, "404 Not Found", "{\"detail\":\"Not Found\"}");
}

/* Answers every request that is whole; one at a time, for a stream ends before the next begins. False: close. */
static bool serve(struct connection *c, uint64_t now)
{
    while (!c->is_streaming && c->in.length) {
        const char *end = memmem(c->in.data, c->in.length, "\r\n\r\n", 4);
        if (!end)
            return c->in.length <= MAX_HEAD;
        size_t head_length = (size_t)(end - c->in.data) + 4;
        char *head = strndup(c->in.data, head_length);
        if (!head)
            abort();
        const char *length = strcasestr(head, "\r\ncontent-length:");
        size_t body_length = length ? strtoul(length + 17, NULL, 10) : 0;
        bool is_whole = c->in.length >= head_length + body_length, is_alive = body_length <= MAX_BODY;
        if (is_whole && is_alive) {
            char *body = strndup(c->in.data + head_length, body_length);
            if (!body)
                abort();
            drop_front(&c->in, head_length + body_length);
            is_alive = answer(c, head, body, now);
            free(body);
        }
        free(head);
        if (!is_whole || !is_alive)
            return is_alive;
    }
    return true;
}

static bool receive(struct connection *c)
{
    uint64_t now = now_ns(); /* a request's clock starts where its last bytes are read */
    for (;;) {
        reserve(&c->in, 16384);
        ssize_t n = recv(c->fd, c->in.data + c->in.length, c->in.capacity - c->in.length, 0);
        if (n < 0)
            return errno == EAGAIN && serve(c, now);
        if (n == 0)
            return false;
        c->in.length += (size_t)n;
    }
}

/* ------------------------------------------------------------------------------------------------------- loop */

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
        connections[fd] = c;
        highest_fd = fd > highest_fd ? fd : highest_fd;
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = fd};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
    }
}

static void handle_event(const struct epoll_event *e, int listener)
{
    if (e->data.fd == listener) {
        accept_all(listener);
        return;
    }
    struct connection *c = connections[e->data.fd];
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

/* Sends all that is due; returns how long until the next is, at most a second. Hundreds of streams at most are what one
 * load tester's run has, so they are simply looked through. */
static uint64_t send_due(void)
{
    uint64_t wait = 1000000000;
    for (int fd = 0; fd <= highest_fd; fd++) {
        struct connection *c = connections[fd];
        uint64_t now = now_ns();
        while (c && c->is_streaming && c->due_ns <= now)
            if (!send_token(c, now) || !serve(c, now)) {
                close_connection(c);
                c = NULL;
            }
        if (c && c->is_streaming && c->due_ns - now < wait)
            wait = c->due_ns - now;
    }
    return wait;
}

static void run(int listener)
{
    struct epoll_event events[256];
    for (;;) {
        struct timespec timeout = to_timespec(send_due());
        int n = epoll_pwait2(epoll, events, sizeof events / sizeof *events, &timeout, NULL);
        for (int i = 0; i < n; i++)
            handle_event(&events[i], listener);
    }
}

static int listen_on(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1024)) {
        perror("paced: cannot listen");
        exit(1);
    }
    return fd;
}

int main(int count, char **arguments)
{
    static const struct option options[] = {
        {"port", required_argument, NULL, 'p'},    {"model", required_argument, NULL, 'm'},
        {"ttft-us", required_argument, NULL, 't'}, {"interval-us", required_argument, NULL, 'i'},
        {NULL, 0, NULL, 0},
    };
    int port = 0, option;
    while ((option = getopt_long(count, arguments, "", options, NULL)) != -1)
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'm': model = optarg; break;
        case 't': ttft_ns = strtoul(optarg, NULL, 10) * 1000; break;
        case 'i': interval_ns = strtoul(optarg, NULL, 10) * 1000; break;
        default: return 2;
        }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000); /* 1 us; the default of 50 us would blur the pace */
    int listener = listen_on(port);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    run(listener);
}
