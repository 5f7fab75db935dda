/* The lockstep protocol of src/tp as a Promela model: N ranks, one plan slot, two parities of records and of all-reduce pieces.
 *
 * Each step: leader publishes plan s; all ranks all-reduce twice (piece t in parity t%2, then flag = t, then read every peer's piece);
 * all publish a record (parity s%2, then done = s) and read every peer's record. Stores are modelled in program order, which is
 * what release and acquire on the announcing words give (docs/tp.md names each pair).
 *
 * Checked: no deadlock (invalid end states), and by assertion: a follower executes every step once and in order; nobody
 * reads a plan, piece or record of another step than its own (no lost step, no overwrite before everyone has read); with FAULT
 * one rank skips an announcement or stops: then nobody may finish a later step (no wrong answer leaves the group). */
#ifndef N
#define N 2
#endif
#ifndef STEPS
#define STEPS 3
#endif

#ifndef PARITIES
#define PARITIES 2 /* with 1 the model finds the overwrite */
#endif

byte plan_seq = 0, plan_data = 0;
byte piece[2 * N], rec[2 * N]; /* [parity * N + rank] holds the step it belongs to */
byte flag[N], done[N];
bool stopped = false;
byte finished[N];

#ifdef FAULT
#define FAULT_ON true
#else
#define FAULT_ON false
#endif

/* announce c in `data`, then `word`; wait for every peer's word, read its data */
#define EXCHANGE(c, data, word) \
    data[(c % PARITIES) * N + me] = c; \
    word[me] = c; \
    r = 0; \
    do \
    :: r < N -> \
        if \
        :: r != me -> \
            (word[r] >= c || stopped); \
            if \
            :: stopped -> goto out \
            :: else -> skip \
            fi; \
            if \
            :: data[(c % PARITIES) * N + r] != c -> stopped = true; assert(FAULT_ON); goto out \
            :: else -> skip \
            fi \
        :: else -> skip \
        fi; \
        r++ \
    :: else -> break \
    od

proctype rank(byte me)
{
    byte s = 1, t = 0, r;
    do
    :: s <= STEPS ->
        if
        :: me == 0 -> plan_data = s; plan_seq = s
        :: else ->
            (plan_seq >= s || stopped);
            if
            :: stopped -> goto out
            :: else -> assert(plan_seq == s && plan_data == s)
            fi
        fi;
#ifdef FAULT
        if
        :: me == N - 1 && s == 2 -> stopped = true; goto out /* dies; a waiting peer sees it and stops the group */
        :: me == N - 1 && s == 3 -> piece[((t + 1) % PARITIES) * N + me] = 0; flag[me] = t + 1; stopped = true; goto out
        :: else -> skip
        fi;
#endif
        t++;
        EXCHANGE(t, piece, flag);
        t++;
        EXCHANGE(t, piece, flag);
        EXCHANGE(s, rec, done);
        finished[me] = s;
#ifdef FAULT
        /* whoever finishes step s did so with every rank's record of s in hand */
        r = 0;
        do
        :: r < N -> assert(done[r] >= s); r++
        :: else -> break
        od;
#endif
        s++
    :: else -> break
    od;
    assert(s == STEPS + 1);
out:
    skip
}

init {
    byte i = 0;
    atomic {
        do
        :: i < N -> run rank(i); i++
        :: else -> break
        od
    }
}
