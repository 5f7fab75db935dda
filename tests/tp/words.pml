/* The LL transport of cuda/comm_body.h: words that carry their step, no flag, no fence. N ranks, one block each with W threads; thread w sends
 * and reads word w. Odd steps are whole slices, even ones short: only thread 0 has a word. A call of the kernel is two steps (2k-1, 2k), and a
 * barrier of the block ends it, as the end of a kernel does; BETWEEN is the barrier between the slices of one call.
 *
 * A reader waits for equality: a word that was overwritten before it was read is a deadlock, and spin finds it. Checked: none, for 2 and
 * 3 ranks; without the barrier between slices, or with one parity, there is one (spin-check runs these too and expects the error). */
#ifndef N
#define N 2
#endif
#ifndef STEPS
#define STEPS 5
#endif
#ifndef PARITIES
#define PARITIES 2
#endif
#define W 2
#define AT(to, from, s, w) word[(((to) * N + (from)) * PARITIES + (s) % PARITIES) * W + (w)]

byte word[N * N * PARITIES * W];
byte arrived[N], phase[N];

inline block_barrier()
{
    p = phase[me];
    atomic {
        arrived[me]++;
        if
        :: arrived[me] == W -> arrived[me] = 0; phase[me] = 1 - phase[me]
        :: else -> skip
        fi
    }
    (phase[me] != p)
}

proctype thread(byte me; byte w)
{
    byte s = 1, r, p;
    do
    :: s <= STEPS ->
        if
        :: s % 2 == 1 || w == 0 ->
            r = 0;
            do
            :: r < N ->
                if
                :: r != me -> AT(r, me, s, w) = s
                :: else -> skip
                fi;
                r++
            :: else -> break
            od;
            r = 0;
            do
            :: r < N ->
                if
                :: r != me -> (AT(me, r, s, w) == s) /* never comes true again when it was overwritten */
                :: else -> skip
                fi;
                r++
            :: else -> break
            od
        :: else -> skip
        fi;
        if
#ifdef BETWEEN
        :: true -> block_barrier()
#else
        :: s % 2 == 0 -> block_barrier()
        :: else -> skip
#endif
        fi;
        s++
    :: else -> break
    od
}

init
{
    byte i = 0;
    atomic {
        do
        :: i < N * W -> run thread(i / W, i % W); i++
        :: else -> break
        od
    }
}
