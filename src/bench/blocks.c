/* Prompts of numbered blocks: see blocks.h. */
#include "bench/blocks.h"

#include <string.h>

static void block_code(struct lk_buf *b, long long n)
{
    lk_buf_fmt(b,
               "class TaskQueue%lld:\n"
               "    \"\"\"A bounded queue of jobs; queue number %lld.\"\"\"\n\n"
               "    def __init__(self, limit=%lld):\n"
               "        self.limit = limit\n"
               "        self.items = []\n"
               "        self.done = 0\n\n"
               "    def push_%lld(self, job, priority=0):\n"
               "        if len(self.items) >= self.limit:\n"
               "            raise OverflowError(\"queue %lld is full\")\n"
               "        self.items.append((priority, job))\n"
               "        self.items.sort(key=lambda pair: -pair[0])\n\n"
               "    def pop_%lld(self):\n"
               "        if not self.items:\n"
               "            return None\n"
               "        priority, job = self.items.pop(0)\n"
               "        self.done += 1\n"
               "        return job\n\n"
               "    def report_%lld(self):\n"
               "        waiting = len(self.items)\n"
               "        return {\"queue\": %lld, \"waiting\": waiting, \"done\": self.done}\n\n\n",
               n, n, n % 97 + 8, n, n, n, n, n);
}

static void block_zh(struct lk_buf *b, long long n)
{
    lk_buf_fmt(b,
               "第%lld节：显存带宽决定了逐词生成的速度。每生成一个词，处理器都要把全部权重从显存里读一遍，再把此前所有"
               "词的键和值读一遍；前者与上下文长度无关，后者随长度增长。因此在长上下文里，第%lld组测量要同时记下两项"
               "字节数，分别除以实测带宽，得到时间的下限，再与实际时间相比，才能说明还有多少余地可以改进。\n\n",
               n, n);
}

static void instruction(struct lk_buf *b, enum lk_block_kind kind)
{
    if (kind == LK_BLOCK_CODE)
        lk_buf_str(b, "请根据以上代码，用 Python 写一个约 120 行的异步任务调度器，支持优先级、超时和取消，并给出简短的使用示例。\n");
    else
        lk_buf_str(b, "请根据以上内容写一份分三部分的报告，约六百字，依次说明瓶颈、测量方法和改进方向。\n");
}

static int tokens_of(const struct lk_tokenizer *t, const struct lk_buf *b, enum lk_block_kind kind, int *n, struct lk_err *e)
{
    if (!t) {
        *n = (int)((double)b->len / (kind == LK_BLOCK_CODE ? 3.2 : 3.0));
        return 0;
    }
    struct lk_ids ids = {0};
    int rc = lk_tokenizer_encode(t, b->data, b->len, LK_SPECIALS_NONE, &ids, e);
    *n = (int)ids.n;
    lk_ids_free(&ids);
    return rc;
}

static void compose(enum lk_block_kind kind, const char *text, size_t amount, long long offset, struct lk_buf *b)
{
    lk_buf_reset(b);
    if (kind == LK_BLOCK_FILE) {
        while (amount && (text[amount] & 0xc0) == 0x80) amount--;
        lk_buf_fmt(b, "[%lld]\n", offset);
        lk_buf_add(b, text, amount);
        lk_buf_chr(b, '\n');
    }
    for (size_t i = 0; kind != LK_BLOCK_FILE && i < amount; i++) {
        if (kind == LK_BLOCK_CODE)
            block_code(b, offset + (long long)i);
        else
            block_zh(b, offset + (long long)i);
    }
    instruction(b, kind);
}

int lk_blocks_make(enum lk_block_kind kind, const char *text, int tokens, long long offset, const struct lk_tokenizer *t,
                   struct lk_buf *out, int *count, struct lk_err *e)
{
    size_t most = kind == LK_BLOCK_FILE ? strlen(text) : (size_t)tokens, low = 1, high;
    struct lk_buf b = {0};
    int n = 0, rc;
    /* one measurement near the target gives the tokens of a unit; from there walk to the largest amount that fits */
    size_t probe = kind == LK_BLOCK_FILE ? (most < 4000 ? most : 4000) : 8;
    compose(kind, text, probe, offset, &b);
    rc = tokens_of(t, &b, kind, &n, e);
    double unit = n > 0 ? (double)n / (double)probe : 1;
    high = (size_t)((double)tokens / unit * 1.3) + 2;
    if (high > most) high = most;
    while (!rc && low < high) {
        size_t mid = low + (high - low + 1) / 2;
        compose(kind, text, mid, offset, &b);
        rc = tokens_of(t, &b, kind, &n, e);
        if (n <= tokens)
            low = mid;
        else
            high = mid - 1;
    }
    if (!rc) {
        compose(kind, text, low, offset, &b);
        rc = tokens_of(t, &b, kind, &n, e);
        *count = t ? n : 0;
        if (!rc && (b.failed || lk_buf_add(out, b.data, b.len))) rc = lk_fail(e, LK_ENOMEM, "no memory for a prompt of %d tokens", tokens);
    }
    lk_buf_free(&b);
    return rc;
}
