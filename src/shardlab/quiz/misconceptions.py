"""Mistakes that readers make about data parallelism, each with a name: feedback and progress reports use them."""

from __future__ import annotations

# slug: (name, what to tell the reader). A question may replace the second with words about its own numbers.
MISCONCEPTIONS: dict[str, tuple[str, str]] = {
    # reading a ratio as another
    "step-inflation": (
        "Step inflation read as speedup",
        "This says how many times longer a step takes than on one rank. Throughput grows by *N* divided by it.",
    ),
    "efficiency-for-speedup": (
        "Efficiency read as speedup",
        "This is the speedup divided by *N*: the *N* batches that a step processes are missing.",
    ),
    "speedup-for-efficiency": (
        "Speedup read as efficiency",
        "Efficiency is the speedup divided by *N*, at most 100 %.",
    ),
    "cap-on-speedup": (
        "A cap on efficiency read as a cap on speedup",
        "In weak scaling the efficiency levels off, so the speedup keeps growing with *N* until latency takes over.",
    ),
    "flat-step": (
        "A flat step time read as no gain",
        "In weak scaling a step processes *N* batches. If its time stays flat, more ranks mean more samples per second.",
    ),
    "share-of-step": (
        "Share of the step in place of share of the compute",
        "Efficiency *E* means *C*/(*C*+*T*) = *E*. The waiting time is *C*(1/*E* − 1), not *C*(1 − *E*).",
    ),
    "other-term": (
        "The other term",
        "An all-reduce has two terms: the bytes' and the hops'. This is the one that was not asked for.",
    ),
    "hidden-exposed": (
        "Exposed and hidden swapped",
        "Exposed communication is the part the ranks wait for; hidden is the rest of the all-reduce.",
    ),
    "wrong-whole": (
        "A share of the wrong whole",
        "The question asks for a share of the all-reduce, not of the step.",
    ),
    "one-rank-baseline": (
        "The wrong baseline",
        "The question compares two numbers of ranks with each other, not with one rank.",
    ),
    # weak and strong
    "strong-for-weak": (
        "Strong scaling in place of weak",
        "This splits one batch over the ranks. Here every rank keeps its own batch, so compute stays *C*.",
    ),
    "weak-for-strong": (
        "Weak scaling in place of strong",
        "This gives every rank a whole batch. Here the global batch is fixed, so compute shrinks to *C*/*N*.",
    ),
    "comm-under-compute": (
        "“Compute must take longer than communication”",
        "That rule is exact for strong scaling without overlap. In weak scaling *N* ranks gain as soon as *T* < (*N*−1)·*C*.",
    ),
    "loss-for-ever": (
        "A loss at one *N* read as a loss at every *N*",
        "In weak scaling the gain (*N*−1)·*C* grows with *N* while the all-reduce levels off below 2*P*/*B*.",
    ),
    "gain-for-ever": (
        "More ranks taken as the way out",
        "In strong scaling both sides shrink by the same (*N*−1)/*N*: no number of ranks turns the loss into a gain.",
    ),
    "not-the-limit": (
        "The value at one *N* taken for the limit",
        "The question asks where the speedup tends to for ever more ranks.",
    ),
    "wrong-saving": (
        "The wrong saving",
        "In strong scaling a rank saves *C* − *C*/*N*: that is what the all-reduce may cost.",
    ),
    "free-lunch": (
        "Communication left out",
        "This takes the ranks as working alone. They also wait for the all-reduce.",
    ),
    # what the ring moves
    "full-2p": (
        "2*P* in place of 2(*N*−1)/*N*·*P*",
        "2*P* is the ceiling that the ring approaches for many ranks. *N* ranks send a little less.",
    ),
    "one-phase": (
        "Half an all-reduce",
        "This counts the reduce-scatter alone. The all-gather moves the same amount again.",
    ),
    "single-copy": (
        "One copy of the gradients",
        "This sends *P* once. The ring moves 2(*N*−1)/*N*·*P* through every rank.",
    ),
    "whole-cluster": (
        "Traffic of the whole cluster over one link",
        "All ranks send at the same time, each over its own link: time follows the bytes of one rank.",
    ),
    "volume-grows": (
        "Bytes per rank taken to grow with *N*",
        "A rank sends 2(*N*−1)/*N*·*P*: less than 2*P* for any number of ranks.",
    ),
    "smaller-chunks": (
        "Smaller chunks taken for less traffic",
        "Chunks shrink to *P*/*N*, but there are 2(*N*−1) of them to send: together 2(*N*−1)/*N*·*P*.",
    ),
    "algorithm-bandwidth": (
        "Buffer size divided by time",
        "That is the algorithm bandwidth. A rank sends 2(*N*−1)/*N* times the buffer, so its link runs faster than that.",
    ),
    "sharding-saves-bytes": (
        "Sharding taken for compression",
        "ZeRO-1 and ZeRO-2 reduce-scatter the gradients and all-gather the parameters: as many bytes as one all-reduce.",
    ),
    "overlap-saves-bytes": (
        "Overlap taken for compression",
        "Overlap hides the time of the all-reduce. The bytes on the wire stay the same.",
    ),
    "speed-for-volume": (
        "Speed taken for volume",
        "A faster link carries the same bytes in less time.",
    ),
    "ranks-for-efficiency": (
        "More ranks taken to raise the efficiency",
        "More ranks raise the speedup in weak scaling. The efficiency falls, because the ring sends a little more.",
    ),
    # times left out or counted twice
    "no-latency": ("Latency left out", "The 2(*N*−1) hops cost *α* each, and that is not small here."),
    "no-compute": ("Compute left out", "This is the all-reduce alone. A step also computes."),
    "whole-step": (
        "The whole step taken as communication",
        "Take the compute off first: the rest is the all-reduce.",
    ),
    "latency-blamed": (
        "Latency blamed for a bandwidth problem",
        "Compare the two terms: 2(*N*−1)·*α* is far smaller than the time the bytes need.",
    ),
    "bandwidth-blamed": (
        "Bandwidth blamed for a latency problem",
        "Compare the two terms: the hops take longer than the bytes here.",
    ),
    "full-overlap": (
        "Overlap counted in",
        "This lets the all-reduce run under the whole compute. Here less of it, or nothing, overlaps.",
    ),
    "no-overlap": (
        "Overlap left out",
        "This adds the two times. Here they run side by side, at least in part.",
    ),
    "forward-overlap": (
        "The all-reduce hidden under the forward pass",
        "Gradients exist only once the backward pass makes them: the all-reduce hides under backward, not forward.",
    ),
    "perfect-overlap": (
        "Overlap taken to hide everything",
        "A step can't end before the all-reduce does. Overlap brings it down to the longer of *C* and *T*, no further.",
    ),
    # units and rounding
    "bits-for-bytes": (
        "Bits and bytes mixed up",
        "Link speeds come in bits per second (Gb/s), gradients in bytes: a byte is 8 bits.",
    ),
    "inverted": (
        "Multiplied in place of divided, or the reverse",
        "From bytes to bits, multiply by 8; from bits to bytes, divide.",
    ),
    "other-network": (
        "A number of the other network",
        "This was computed with the bandwidth of another cluster.",
    ),
    "binary-giga": ("GiB in place of GB", "GB and Gb/s count in powers of ten: 10^9^, not 2^30^."),
    "gradient-width": ("The wrong bytes per gradient", "fp32 takes 4 bytes per parameter, bf16 takes 2."),
    "tie-is-a-gain": (
        "A tie counted as a gain",
        "At this *N* the speedup is not above 1 yet. Break-even needs the next one.",
    ),
    "off-by-one": (
        "*N* in place of *N*−1",
        "One of the *N* batches is what one rank does anyway: the gain is (*N*−1)·*C*.",
    ),
    "fewer-ranks-faster": (
        "Latency taken as the term that matters",
        "Fewer hops save microseconds here; the bytes cost milliseconds.",
    ),
    "too-slow": (
        "A link that misses the target",
        "With this link the all-reduce takes longer than the target allows.",
    ),
    "oversized": (
        "More than the target needs",
        "This link reaches the target, but a slower one on the list does too.",
    ),
    # accumulation and batch
    "bytes-per-micro-batch": (
        "Accumulation taken to add bytes",
        "With `no_sync` the micro-batches add up locally: one all-reduce of *P* bytes per optimizer step.",
    ),
    "accumulation-is-free": (
        "Accumulation taken as free",
        "The global batch grows with the number of micro-batches, so the optimizer takes fewer steps per sample.",
    ),
    "memory-grows": (
        "Accumulation taken to store every gradient",
        "Each micro-batch adds to the same gradient buffer. Activations of one micro-batch live at a time.",
    ),
}
