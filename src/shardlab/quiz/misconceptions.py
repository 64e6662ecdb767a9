"""Mistakes that readers make about splitting a training run, each with a name: feedback and progress reports use them."""

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
    # what the ring's phases do
    "both-phases": (
        "Both phases counted",
        "The question asks for one phase. A reduce-scatter sends (*N*−1)/*N*·*P*, and the all-gather as much again.",
    ),
    "own-chunk": (
        "*N* chunks in place of *N*−1",
        "A rank never has to send the chunk that ends with it: *N*−1 rounds of one chunk each.",
    ),
    "one-round": (
        "One round taken for all",
        "A chunk of *P*/*N* is what a rank sends in one round. A phase has *N*−1 of them.",
    ),
    "chunks-and-rounds": (
        "Chunks and rounds mixed up",
        "There are *N* chunks, one for each rank to finish, and *N*−1 rounds in each of two phases.",
    ),
    "gather-forgotten": (
        "The all-gather left out",
        "That is so after the all-gather. The reduce-scatter leaves each rank with one finished chunk.",
    ),
    "no-sum": (
        "Chunks collected, not added up",
        "A rank adds its own part to each chunk that passes. Nobody ever keeps the gradients of all ranks.",
    ),
    "ring-has-root": (
        "A root in the ring",
        "All ranks of a ring do the same. None of them gathers everything.",
    ),
    "neighbour-only": (
        "One neighbour taken for few bytes",
        "A rank has one neighbour, but sends to it in 2(*N*−1) rounds. What keeps the volume is that a chunk shrinks to *P*/*N*.",
    ),
    "sum-shrinks": (
        "A sum taken for compression",
        "The sum of gradients has as many elements as each of them.",
    ),
    "ceiling-as-floor": (
        "A ceiling read as a lower bound",
        "2*P* is what the volume approaches from below as *N* grows. A ring of few ranks sends less.",
    ),
    "rank-for-cluster": (
        "One rank taken for the cluster",
        "The bytes of one rank hardly change. All links together carry *N* times as many.",
    ),
    "tree-as-chain": (
        "A tree with as many rounds as a ring",
        "A tree halves the ranks that still wait in every round: lg *N* rounds up and lg *N* down.",
    ),
    "tree-in-chunks": (
        "A tree taken to cut the buffer",
        "Whole gradients pass every link of this tree. Only the ring works on chunks of *P*/*N*.",
    ),
    "headers-blamed": (
        "Headers blamed for a factor of two",
        "Headers add per cents at most to large buffers.",
    ),
    "double-counting": ("Bytes counted twice", "Bytes that are sent count once, where they are sent."),
    "name-for-wire": (
        "The name of a call taken for what it sends",
        "Two halves of an all-reduce should send as much as one. Add up what was counted.",
    ),
    # what each kind of parallelism splits
    "batch-for-model": (
        "The batch taken for the model",
        "Data parallelism splits the batch. Every rank works on its own samples with the whole model.",
    ),
    "layers-for-matrices": (
        "Layers taken for matrices",
        "A pipeline stage holds whole layers. It does not make a single layer smaller.",
    ),
    "gathers-whole-layer": (
        "ZeRO-3 taken for tensor parallelism",
        "ZeRO-3 keeps a shard, but gathers all weights of a layer before it computes: the whole layer has to fit at that moment.",
    ),
    "gather-is-no-copy": (
        "Gathered for a moment taken for kept",
        "ZeRO-3 gathers one layer at a time and frees it again. What a rank keeps is its shard.",
    ),
    "model-replicated": (
        "A split model taken for a copied one",
        "Tensor and pipeline parallelism split the model: each rank keeps a part of the weights.",
    ),
    "every-split-pays-bytes": (
        "Every split taken to pay with bytes",
        "What is paid differs: bytes in every layer (tensor), idle time (pipeline), nothing beyond data parallelism (ZeRO-1, ZeRO-2).",
    ),
    "fast-link-is-free": (
        "A fast link taken for a free one",
        "All-reduces inside the layers take time on any link, and the next matrix product waits for them.",
    ),
    "idle-for-all-reduce": (
        "Communication taken for a pipeline's idle time",
        "Data-parallel ranks wait for one all-reduce of gradients. Idle slots for lack of work are the pipeline's price.",
    ),
    "boundary-is-dear": (
        "Stage boundaries taken for dear",
        "A boundary passes one activation per micro-batch and direction, less than anything else sends.",
    ),
    "slices-send-less": (
        "Smaller slices taken for less traffic",
        "Each all-reduce is over the whole activation, however thin the slices of the weights are.",
    ),
    "finest-split-anywhere": (
        "Tensor parallelism across slow links",
        "Its all-reduces stand in every layer and can't be hidden: they belong on the fastest links.",
    ),
    "volume-for-urgency": (
        "Much traffic taken for urgent traffic",
        "The gradients' exchange can hide under the backward pass. The all-reduces inside a layer can't: the next operation needs them.",
    ),
    "forward-only": ("The forward pass alone", "The backward pass has its share too."),
    "one-all-reduce": (
        "One all-reduce of four",
        "There are two in the forward pass and two in the backward pass.",
    ),
    "one-layer": (
        "One layer taken for all",
        "This is one layer. Every layer of the model has to send as much.",
    ),
    "one-way": ("One direction only", "Activations go on, and their gradients come back."),
    "one-micro-batch": (
        "One micro-batch taken for all",
        "Every micro-batch of the step crosses the boundary.",
    ),
    "inside-the-stage": (
        "Traffic inside a stage",
        "Layers of one stage are on one rank. Only what leaves the stage is sent.",
    ),
    "axis-forgotten": ("An axis left out", "The axes of a mesh multiply: every one of them divides."),
    "axes-add-up": ("Axes added up", "The sizes of the axes multiply to the world size."),
    # model states and ZeRO
    "nothing-sharded": ("Nothing sharded", "This is what plain data parallelism keeps on every rank."),
    "other-stage": (
        "Another ZeRO stage",
        "This is a number of another stage: look again at what this one shards.",
    ),
    "all-sharded": (
        "Everything divided by *N*",
        "Only ZeRO-3 (and a split of the model itself) divides all model states by *N*.",
    ),
    "limit-at-finite-n": (
        "The limit taken at a finite *N*",
        "Four and eight times are what ZeRO-1 and ZeRO-2 tend to for ever more ranks. The sharded part is still there, divided by *N*.",
    ),
    "weights-only": (
        "Weights only",
        "Training keeps gradients, fp32 master weights and moments too: most of the bytes are not the 16-bit weights.",
    ),
    "does-not-fit": ("It does not fit", "More than what is left beside the activations."),
    "sharded-too-far": ("Sharded further than needed", "A lower stage fits, too."),
    "stage3-is-free": (
        "ZeRO-3 taken for free",
        "It gathers the weights for the forward and for the backward pass: 3 passes in place of 2.",
    ),
    "shards-cost-n-fold": (
        "Traffic taken to grow with the number of shards",
        "A gather sends (*N*−1)/*N* of the weights per rank, whatever *N* is.",
    ),
    "one-gather": (
        "One all-gather of two",
        "The weights are gathered for the forward pass, freed, and gathered again for the backward pass.",
    ),
    "stage2-shards-weights": (
        "ZeRO-2 taken to shard the weights",
        "The 16-bit weights stay whole on every rank until stage 3.",
    ),
    "activations-sharded": (
        "Activations taken for model states",
        "ZeRO shards parameters, gradients and optimizer state. Activations and buffers come on top.",
    ),
    "zero-splits-batch": (
        "The batch split once more",
        "The batch is split as in data parallelism. ZeRO splits what data parallelism copies.",
    ),
    "sharding-costs-bytes": (
        "Every shard taken to cost bytes",
        "A reduce-scatter of gradients and an all-gather of weights send as much as one all-reduce: ZeRO-1 and ZeRO-2 cost no bytes.",
    ),
    "accumulation-for-all-stages": (
        "Accumulation taken to help every stage",
        "ZeRO-2 reduce-scatters in every micro-batch, and ZeRO-3 gathers as well. Only plain data parallelism and ZeRO-1 can wait.",
    ),
    "gather-every-time": (
        "An all-gather in every micro-batch",
        "ZeRO-2 keeps the weights whole: one all-gather per step, after the update.",
    ),
    "large-model-small-stage": (
        "Large models taken for a reason against ZeRO-3",
        "A model that does not fit otherwise is what ZeRO-3 is for.",
    ),
    "memory-is-all": (
        "Memory taken for the only price",
        "Memory that nobody needs buys nothing; the gathers take time.",
    ),
    "smaller-shards-send-less": (
        "Smaller shards taken for less traffic",
        "A rank sends 3(*N*−1)/*N*·Ψ elements: it grows a little with *N*.",
    ),
    "smaller-micro-batches": (
        "Smaller micro-batches taken to send less",
        "ZeRO-2 and ZeRO-3 send as much for a small micro-batch as for a large one.",
    ),
    "other-recipe": (
        "Bytes of another recipe",
        "This takes 2 + 2 + 12 bytes per parameter. Add up what this library keeps.",
    ),
    # pipelines
    "ideal-for-total": (
        "Idle over ideal in place of idle over total",
        "(*p*−1)/*m* is idle time in units of the work. Over the total time it is (*p*−1)/(*m*+*p*−1).",
    ),
    "total-for-ideal": (
        "Idle over total in place of idle over ideal",
        "(*p*−1)/(*m*+*p*−1) is the share of the total time. Over the ideal time it is (*p*−1)/*m*.",
    ),
    "ratio-unnamed": (
        "Two ratios compared as one",
        "Both are called bubble. A number says nothing until its denominator is named.",
    ),
    "stages-for-gaps": (
        "*p* in place of *p*−1",
        "A pipeline of *p* stages has *p*−1 idle slots: with one stage there is no bubble.",
    ),
    "turns-for-bubble": (
        "Stages taken to work one at a time",
        "With several micro-batches all stages work at once, except while the pipeline fills and empties.",
    ),
    "no-bubble": (
        "The bubble left out",
        "This is the working time alone. The pipeline also fills and empties.",
    ),
    "1f1b-for-bubble": (
        "1F1B taken to lower the bubble",
        "1F1B idles exactly as long as GPipe. What it lowers is the number of micro-batches in memory.",
    ),
    "idle-for-transfer": (
        "Waiting for work taken for waiting for data",
        "The bubble is there with free transfers, too: stages have nothing to do while the pipeline fills and empties.",
    ),
    "memory-for-bubble": (
        "A remedy for memory, not for idle time",
        "Recomputation makes passes longer, idle and working time alike.",
    ),
    "tie-is-too-much": ("One more than needed", "The bound may be met exactly."),
    "rule-of-four": (
        "The rule of four micro-batches per stage",
        "With *m* = 4*p* the idle share of the total time is still between 15 % and 20 %.",
    ),
    "fewer-micro-batches": (
        "The number of micro-batches taken not to matter",
        "Filling and emptying take (*p*−1) slots however many micro-batches there are: more of them dilute it.",
    ),
    "all-in-flight": (
        "GPipe's memory in place of 1F1B's",
        "Under GPipe all *m* micro-batches are in flight. 1F1B starts backward passes as soon as it can and holds at most *p*.",
    ),
    "1f1b-memory-for-gpipe": (
        "1F1B's memory in place of GPipe's",
        "GPipe runs all forward passes first, so all micro-batches are in flight.",
    ),
    "one-in-flight": (
        "One micro-batch in memory",
        "While the first micro-batch passes the other stages and comes back, the first stage starts more of them.",
    ),
    "interleaving-ignored": (
        "Interleaving left out",
        "With *v* chunks per rank the pipeline fills and empties *v* times as fast.",
    ),
    "total-divided": (
        "The share divided in place of the time",
        "Interleaving divides the idle time by *v*. The share of the total time falls by less.",
    ),
    "chunks-as-stages": (
        "Chunks counted as stages",
        "Chunks share the *p* ranks. The idle slots stay *p*−1, and each is shorter.",
    ),
    "chunks-repeat-work": (
        "Chunks taken for copies",
        "The same layers are cut into smaller pieces. Nothing is computed or kept twice.",
    ),
    "interleaving-is-free": (
        "Interleaving taken for free",
        "Every micro-batch crosses *v* times as many boundaries.",
    ),
    "alternation-costs": (
        "Alternating passes taken to cost time",
        "The order of passes changes; the idle time of 1F1B and GPipe is the same.",
    ),
    "copies-share-batch": (
        "Micro-batches shared by the copies",
        "Each data-parallel copy of the pipeline works on micro-batches of its own.",
    ),
    "slow-stage-ignored": (
        "The slow stage left out",
        "Every micro-batch has to pass the slow stage, and the others wait for it in every slot.",
    ),
    "mean-for-slowest": (
        "The mean in place of the slowest",
        "A pipeline goes at the pace of its slowest stage, not of the mean.",
    ),
    "all-stages-slow": (
        "All stages taken to be slow",
        "Only one stage is slow: the first micro-batch passes the others at their own pace.",
    ),
    "slow-once": (
        "The slow stage counted once",
        "Every micro-batch passes the slow stage, not only the first.",
    ),
    "slowest-for-all": ("One stage taken for all", "Stages idle for different times here: take their mean."),
    "work-vanishes": (
        "Work taken to vanish",
        "The work of the slow stage moves to the others: every stage then takes the mean.",
    ),
    "other-schedule": ("Another schedule", "This is the idle time of another schedule."),
    "weights-forgotten": (
        "The weight gradient left out",
        "The backward pass has two halves. 1F1B does both in one go; ZB-H1 fills gaps with the second.",
    ),
    "zero-by-name": (
        "Zero taken from the name",
        "ZB-H1 idles less, not never. Schedules that come near to zero hold more micro-batches in memory.",
    ),
    "weights-twice": (
        "Weight gradients taken to be computed twice",
        "Each is computed once, only later.",
    ),
    # checkpoints
    "gradients-are-state": (
        "Gradients taken for state",
        "Between two steps the gradients are used up and cleared. Only a checkpoint inside a step needs them.",
    ),
    "counter-between-steps": (
        "An accumulation counter between steps",
        "After an optimizer step it is zero. It matters only inside a step, and then the gradients matter too.",
    ),
    "activations-are-state": (
        "Activations taken for state",
        "They live from a forward pass to its backward pass.",
    ),
    "copy-forgotten": (
        "The 16-bit weights left out",
        "This is 12 bytes per parameter. The question counts 16-bit weights beside the fp32 ones: 14.",
    ),
    "state-shows-at-once": (
        "Every omission taken to show in the first loss",
        "The first loss depends on parameters, data and random states. Optimizer and schedule show from the next steps on.",
    ),
    "moments-recover": (
        "Moments taken for something that can be computed",
        "They are running means of the gradients of many past steps.",
    ),
    "framework-checks": (
        "The framework taken to check it",
        "A framework restores what it is given. What was never saved is begun anew, in silence.",
    ),
    "shuffling-hides-it": (
        "Shuffling taken to make it harmless",
        "Samples seen twice in an epoch weigh twice, and others are missed. The run can't be reproduced either.",
    ),
    "epochs-forgotten": (
        "Whole epochs left in",
        "The set is shuffled anew every epoch: only the steps of the current epoch count.",
    ),
    "steps-for-samples": ("Steps in place of samples", "A step takes many samples."),
    "schedule-restarts": (
        "The schedule begun anew",
        "That is what happens without the schedule's position. The question asks where it should go on.",
    ),
    "warmup-forgotten": ("The warm-up left out", "The peak is reached only at the end of the warm-up."),
    "epoch-for-step": (
        "The wrong count of steps",
        "The schedule counts all optimizer steps of the run, not those of an epoch.",
    ),
    "position-needs-file": (
        "A position taken to need a file",
        "Shuffle and schedule follow from seed and step: both can be put right by hand.",
    ),
    "copy-per-rank": (
        "Shards and copies mixed up",
        "With sharded states each rank writes its own part of one checkpoint.",
    ),
    "rank-zero-writes": (
        "One rank taken to write for all",
        "All ranks write their shards at once, as fast as the storage takes them.",
    ),
    "storage-per-rank": (
        "The storage counted once per rank",
        "The bandwidth is that of all writers together.",
    ),
    "overwrite-in-place": (
        "The only checkpoint overwritten",
        "A failure while it is written leaves none. Write the new one first, then remove the oldest.",
    ),
    "one-node": (
        "One node taken for the job",
        "Any of the nodes stops the job: it fails *n* times as often.",
    ),
    "days-for-hours": ("Days in place of hours", "The question asks for hours."),
    "root-of-half": ("The 2 left out", "The work lost is half an interval on average: √(2δ*M*)."),
    "root-forgotten": ("The root left out", "The interval is √(2δ*M*), a time; 2δ*M* is not one."),
    "once-per-failure": (
        "One checkpoint per failure",
        "Then half of all work would be lost, while writing costs next to nothing.",
    ),
    "restart-forgotten": (
        "The restart left out",
        "After each failure it also takes *R* until training runs again.",
    ),
    "whole-interval-lost": (
        "The whole interval lost",
        "A failure comes in the middle of an interval on average: half of it is lost.",
    ),
    "more-is-safer": (
        "More checkpoints taken to cost less",
        "Less work is lost per failure, and more time goes into writing. Below Young's interval the writing wins.",
    ),
    "writing-is-free": (
        "Writing taken for free",
        "Training stands still while a checkpoint is written or copied.",
    ),
    "checkpoints-prevent": (
        "Checkpoints taken to prevent failures",
        "Nodes fail as often as before. A checkpoint lowers what a failure costs.",
    ),
    "durable-for-blocked": (
        "Time until safe taken for time stopped",
        "Training stops for the copy only. The write goes on behind it.",
    ),
    "asynchronous-is-free": ("Asynchronous taken for free", "Training still stops for the copy."),
    "copy-is-safe": (
        "A copy taken for a checkpoint",
        "A failure also loses the host memory. Only what is safe on storage counts.",
    ),
    "worst-for-mean": ("The worst case in place of the mean", "The question asks for the average."),
    "mean-for-worst": ("The mean in place of the worst case", "The question asks for the longest."),
    "load-forgotten": ("Loading left out", "The processes run, but the checkpoint has to be read."),
    "noticed-at-once": (
        "A failure taken to be noticed at once",
        "The other ranks wait in a collective until its time limit runs out.",
    ),
    "redo-in-restart": (
        "Work done again counted as restart",
        "Training runs again before the lost work is done again.",
    ),
    "redo-forgotten": ("Work done again left out", "Training runs again, but from the last checkpoint."),
    "smaller-term": ("The smaller term attacked", "It helps, but another part of the recovery is longer."),
    # production
    "low-efficiency-convicts": (
        "Low efficiency taken for a verdict on the network",
        "It makes the network a suspect. What the link delivered, against what it can, convicts or clears it.",
    ),
    "half-is-a-pass": (
        "One half taken for a pass mark",
        "A large batch hides a bad link, and a good link is slow for a small batch: compare what it delivered with what it can.",
    ),
    "one-end": (
        "One end of a bracket taken for the answer",
        "A step time says between which bandwidths the link lies. How much overlaps decides where.",
    ),
    "streams-can-be-cut": (
        "Random streams taken for arrays",
        "A random stream belongs to a rank. On another number of ranks the masks are others.",
    ),
    "sums-in-any-order": (
        "Sums taken to be equal in any order",
        "Floating-point sums over other groups of ranks differ in their last digits, and the next steps carry that on.",
    ),
    "launcher-does-it": (
        "The program's work left to the launcher",
        "A launcher starts processes, tells them their place, and restarts them. Device, data and checkpoints are the program's.",
    ),
    "only-the-dead": (
        "Only what died taken to be restarted",
        "A process group that has lost a member is of no use to the others: all ranks start anew.",
    ),
    "counted-from-one": ("Counted from one", "Ranks, nodes and GPUs are numbered from 0."),
    "axes-swapped": (
        "Fast and slow axis swapped",
        "The ranks of a node are neighbours in number: the GPU counts fastest.",
    ),
    "rung-skipped": (
        "A rung of the ladder skipped",
        "Each rung has a run known to work beneath it. Skip one, and a fault has two possible causes.",
    ),
    "last-ones-only": (
        "The last checkpoints taken to be enough",
        "When the loss explodes, the last ones may all hold the damage: older ones are kept beside them.",
    ),
    "old-ones-only": ("The last checkpoints left out", "The most recent ones are kept beside the old ones."),
    "nothing-removed": (
        "Every checkpoint taken to be kept",
        "All but the last ones and those of the round steps are removed.",
    ),
    "one-checkpoint": ("One checkpoint taken for all", "Several are kept, each of full size."),
    "same-data-again": (
        "The same data met again",
        "The same weights with the same batches in the same order do the same again: move the data position on.",
    ),
    # how a matrix is cut (chapter 05)
    "recompute-forgotten": (
        "The repeated forward pass left out",
        "Full recomputation runs the forward pass once more, with its two all-reduces: six a layer in place of four.",
    ),
    "recompute-doubles": (
        "Everything taken to run twice",
        "Full recomputation repeats the forward pass alone: six all-reduces in place of four.",
    ),
    "activations-follow-weights": (
        "Activations taken to shrink as the weights do",
        "Norms, residuals and the inputs of both blocks stay whole on every rank, until sequence parallelism splits them.",
    ),
    "split-part-whole": (
        "A split part taken for a whole one",
        "What a rank makes with its own heads or its own columns is split.",
    ),
    "split-part-forgotten": (
        "The split part left out",
        "This is what every rank keeps whole. Its share of the rest comes on top.",
    ),
    "batch-cancels": (
        "The batch taken to matter",
        "Bytes and FLOP both grow with the tokens: their ratio stays.",
    ),
    "rows-for-columns": ("Rows taken for columns", "The first matrix is cut by columns, the second by rows."),
    "cut-twice": ("Cut in both directions", "Each matrix is cut once: a rank has 1/*t* of it."),
    "one-matrix": ("One matrix of two", "The MLP has two matrices, and both are cut."),
    "wide-for-narrow": (
        "The wide tensor in place of the narrow one",
        "Columns, then rows: what is added up is the output, *h* wide. The wide tensor never travels.",
    ),
    "gelu-of-parts": (
        "GELU of parts taken for a part of GELU",
        "GELU is not linear: GELU(*x* + *y*) is not GELU(*x*) + GELU(*y*). The sum must come first.",
    ),
    "framework-notices": (
        "A framework taken to notice",
        "Shapes fit and numbers are finite. Only a comparison with the unsplit layer shows it.",
    ),
    "scores-kept": (
        "Scores counted that are not kept",
        "Selective recomputation makes the attention scores anew in the backward pass.",
    ),
    "scores-forgotten": (
        "The attention scores left out",
        "Without recomputation and without flash attention the scores are kept: 5·*a*·*s*^2^·*b* bytes in all.",
    ),
    "one-sequence": ("One sequence of the micro-batch", "Every sequence of the micro-batch keeps as much."),
    "sequence-saves-bytes": (
        "Sequence parallelism taken to send less",
        "It opens each all-reduce into a reduce-scatter and an all-gather: together they send as much.",
    ),
    "halves-as-wholes": (
        "Halves of an all-reduce counted as wholes",
        "A reduce-scatter and an all-gather send half an all-reduce each.",
    ),
    "sequence-for-context": (
        "Sequence parallelism taken for context parallelism",
        "Sequence parallelism splits the tokens where tensor parallelism keeps them whole. Context parallelism splits attention itself.",
    ),
    "attention-forgotten": (
        "The products of attention left out",
        "A layer's FLOP go with *h* + *s*/6: the scores and their product with the values are the *s*/6.",
    ),
    "heads-are-cut": (
        "Heads taken to be divisible",
        "A rank takes whole heads: *t* must divide their number.",
    ),
    "copies-forbidden": (
        "Copies of key heads taken for forbidden",
        "With more ranks than key heads several ranks keep a copy of the same one.",
    ),
    "kv-heads-uneven": (
        "Key heads that don't come out even",
        "The ranks must divide the key heads, or the key heads the ranks.",
    ),
    "link-idle": (
        "A link that would be mostly idle",
        "A large all-reduce gets most of a link's bandwidth. What was seen is far below it.",
    ),
    # meshes and layouts (chapter 08)
    "numbering-is-free": (
        "Numbering taken not to matter",
        "The same degrees send as many bytes, but other numbers put the groups on other links.",
    ),
    "every-rank-leaves": (
        "Every rank taken to leave the node",
        "Where neighbours in the ring share a node, their hop stays inside. Count only the hops that leave.",
    ),
    "port-not-shared": (
        "The ports counted for one ring alone",
        "All groups talk at once: the ranks of a node that send out share its ports.",
    ),
    "nodes-for-hops": (
        "Nodes counted",
        "A node is where ranks sit. Groups and their hops follow from the numbering.",
    ),
    "members-for-groups": (
        "Members of a group taken for groups",
        "Several members of one group may share a node. Only the last of them sends out of it.",
    ),
    "any-group-will-do": (
        "One group taken to be as good as another",
        "Gradients may be averaged only over ranks that hold the same weights: data, and context with it.",
    ),
    "other-weights": (
        "Ranks with other weights",
        "Gradients are averaged over the ranks that hold the same weights. Along tensor a rank holds another slice, along pipeline other layers.",
    ),
    "context-forgotten": (
        "Context ranks left out",
        "Context ranks hold the same weights and see other tokens: they share gradients, too.",
    ),
    "size-for-number": (
        "A size taken for a number",
        "How many ranks a group has is one thing, how many groups there are another.",
    ),
    "rounded-down": ("Rounded down", "One fewer does not reach the bound yet."),
    "split-too-far": (
        "Split further than needed",
        "It fits with less, and every further split is a further price.",
    ),
    "rule-for-prediction": (
        "A rule of thumb taken for a prediction",
        "Tensor first is a first guess. The prediction for this model and these links says otherwise.",
    ),
    "slower-layout": ("Not the fastest that fits", "Another layout of the table fits, too, and is faster."),
    # anti-patterns
    "slow-rank-for-mean": (
        "The slow rank's time taken for the mean",
        "In a mean, one rank's extra time is divided by the number of all ranks.",
    ),
    "other-share": (
        "Two shares mixed up",
        "The mean hardly rises, while nearly all ranks wait for the slow one: two numbers, far apart.",
    ),
    "all-ranks-wait": ("All ranks taken to wait", "The last one to arrive waits for nobody."),
    "long-wait-is-slow": (
        "A long wait taken for slowness",
        "The time in a collective is mostly the wait for the last rank. The slow rank has the shortest.",
    ),
    "loss-has-a-clock": (
        "A loss taken to show time",
        "A loss is computed from numbers. The slow rank's gradients are as good as the others', only late.",
    ),
    "step-time-accuses": (
        "The step time taken to name the slow rank",
        "In synchronous training all ranks have the same step time.",
    ),
    "busy-is-working": (
        "Busy taken for working",
        "Utilisation is the share of time in which some kernel runs, and a kernel that waits for the network runs.",
    ),
    "fastest-for-slowest": (
        "The fastest rank taken to set the pace",
        "All wait for the slowest of those that are left.",
    ),
    "gain-denied": ("A repair taken to change nothing", "The others no longer wait for it."),
    "bubble-is-everything": (
        "The whole step taken for bubble",
        "More micro-batches dilute the idle time. The work per micro-batch stays.",
    ),
    "measured-for-expected": (
        "The measurement in place of the prediction",
        "The question asks what the formula says. Only then can the two be compared.",
    ),
    "hypothesis-kept": (
        "A refuted hypothesis kept",
        "The formula said what was to be gained. If that does not come, the cause is elsewhere.",
    ),
    "evidence-ignored": (
        "Evidence left aside",
        "Both runs reach nearly what the bubble leaves, and the gain came as predicted.",
    ),
    "nothing-refutes": (
        "A hypothesis that nothing could refute",
        "The formula holds for any number of micro-batches, and says what twice as many must bring.",
    ),
    "compute-slows-too": (
        "The whole step taken to slow down",
        "Only the communication takes longer. Compute is as it was.",
    ),
    "time-for-work": (
        "Time spent computing taken for work done",
        "While it computes, a GPU is still below its peak. MFU counts FLOP against the peak.",
    ),
    "exchange-grows-too": (
        "The exchange taken to come with every micro-batch",
        "Compute grows with the micro-batches. The gradients are exchanged once an update, if nobody forgets `no_sync`.",
    ),
    "batch-for-traffic": (
        "Data looked at for a fault of traffic",
        "Four times as many samples are right here. What is too much is the time beyond compute.",
    ),
    "longest-for-shortest": (
        "The longest share taken for what all can run",
        "A step needs every rank: the shortest share ends it.",
    ),
    "dealt-evenly": (
        "Slices taken to be dealt evenly",
        "Slices of equal length, rounded up, leave the whole shortage to the last rank.",
    ),
    "roles-swapped": (
        "Who waits and who has left swapped",
        "The rank with fewer batches ends; the others wait.",
    ),
    "ranks-may-leave": (
        "A rank taken to be free to leave",
        "An all-reduce needs every rank of its group.",
    ),
    "rest-for-padding": (
        "The remainder taken for the padding",
        "The remainder is what stands over. Padding fills the last round up.",
    ),
    "one-a-rank": ("One more for every rank", "Only the last round is filled up."),
    "padding-forgotten": (
        "The padding left out",
        "Equal numbers of batches on all ranks mean that some come twice, or some are dropped.",
    ),
    "padding-for-rest": (
        "The padding taken for the remainder",
        "Dropped is what stands over after the last full round.",
    ),
    "slices-cut": (
        "Slices cut to the shortest",
        "A sampler deals batch by batch: it leaves less than one batch a rank.",
    ),
    # accumulation, learning rate, stragglers and data (chapter 09)
    "sum-for-mean": (
        "A sum taken for a mean",
        "The gradient is as many times too long as there are micro-batches. Adam hides it, clipping brings it back.",
    ),
    "late-flag": (
        "The flag set after the forward pass",
        "DDP decides in the forward pass whether the backward pass will talk: the wrong micro-batch does, and the ranks drift apart without an error.",
    ),
    "skip-misread": (
        "The sign of `no_sync` misread",
        "Skipped, a further micro-batch adds its compute. Not skipped, it adds an all-reduce, too.",
    ),
    "profiler-needed": (
        "A profiler taken to be needed",
        "Two measured steps with different numbers of micro-batches tell it, where the all-reduce is long.",
    ),
    "micro-batches-uncounted": (
        "The micro-batches left out",
        "Micro-batch times micro-batches per step times ranks: all three count.",
    ),
    "rate-kept": (
        "The learning rate kept for a larger batch",
        "With fewer steps for the same samples each step should be longer. It is kept only if the batch is kept.",
    ),
    "ranks-for-batch": (
        "Ranks taken for the batch",
        "The rules go by the global batch. Micro-batches per step and their size count as well.",
    ),
    "other-rule": ("The other rule", "Linear is the rule for SGD, the square root the one for Adam."),
    "decay-kept": (
        "Decay rates kept",
        "A step now stands for more samples. With the old rate the moments would look back over more of them.",
    ),
    "longest-all-reduce": (
        "The longest all-reduce taken for the slow rank's",
        "Who is inside for a long time has arrived early and waits. The slow rank arrives last and waits for nobody.",
    ),
    "network-blamed": (
        "Waiting blamed on the network",
        "A slow network makes the all-reduce long on every rank. Here one rank does not wait at all.",
    ),
    "step-times-tell": (
        "Step times taken to show the slow rank",
        "All ranks have the same step time, because they wait for each other. Compute times differ.",
    ),
    "fastest-for-mean": (
        "The fastest rank as the yardstick",
        "One fast rank makes this ratio large. What evening out would win back is the distance to the mean.",
    ),
    "loss-stays": (
        "The slow rank taken not to matter",
        "Every step has waited for it: the step gets shorter when it does.",
    ),
    "equals-do-not-wait": (
        "Equal ranks taken not to wait",
        "A step takes the largest of *N* draws. Many equal ranks that vary can cost more than one that is slow.",
    ),
    "rare-is-rare": (
        "Rare on one rank taken to be rare on all",
        "One late rank is enough to hold up a step, and there are many ranks.",
    ),
    "padding-for-dropping": (
        "Padding and dropping mixed up",
        "Either the last round is filled with samples read before, or it is left out.",
    ),
    "rest-forgotten": (
        "The uneven rest forgotten",
        "The samples do not go round evenly, and all ranks get equally many.",
    ),
    "orders-agree": (
        "Different orders taken for one",
        "Nothing is lost or doubled as long as all ranks deal from one order: it takes one seed for that.",
    ),
    "one-rank-only": ("One rank taken for all", "The question is about all ranks together."),
    "mean-of-means": (
        "A mean of means taken for the mean",
        "Parts of unequal size count the same in it: what lies in a small part counts too much.",
    ),
    "repeats-counted": (
        "The uneven rest left in",
        "Sums are right only if each sample is counted once.",
    ),
    "ranks-divide": (
        "DDP's average forgotten",
        "DDP divides by the number of ranks. Who has divided by all tokens already has to multiply by it.",
    ),
    "rank-for-all": (
        "One rank's tokens taken for all",
        "Then a token counts more on the rank that has fewer of them.",
    ),
    "scale-under-adam": (
        "The gradient's length taken for Adam's step",
        "Adam divides by the size of the gradient: a constant factor drops out, but for its small epsilon.",
    ),
    # predicting a whole run
    "peak-for-sustained": (
        "The data sheet's rate in place of the sustained one, or the reverse",
        "Arithmetic goes at the rate that large products keep up; MFU is a share of the dense peak.",
    ),
    "recompute-counted": (
        "Repeated work counted",
        "Nothing is recomputed here: 6 FLOP per parameter and token, not 8.",
    ),
    "tensor-outside-bubble": (
        "Collectives left out of the pipeline's work",
        "A stage is busy with its collectives too, so the others wait for them as well.",
    ),
    "all-in-bubble": (
        "Everything put into the pipeline",
        "The exchange across replicas comes after the last micro-batch. No stage waits for it in every slot.",
    ),
    "bracket-as-error-bar": (
        "A bracket taken for an error bar",
        "It says how much hangs on overlap. Errors of the rates, and causes left out, come on top.",
    ),
    "one-row-proves": (
        "One row taken for a proof",
        "One row may be met by luck. Show every row, the mean and the largest error.",
    ),
    "held-out-denied": (
        "A prediction taken for a fit",
        "What counts is whether this very row was used. Another row of the table leaves it a prediction.",
    ),
    "amdahl-forgotten": (
        "The whole step taken to get faster",
        "Only the part that uses what was doubled gets faster. The rest takes as long as before.",
    ),
    "bubble-stays": (
        "The bubble taken to stay",
        "The bubble is a share of the pipelined work. It shrinks with it.",
    ),
    "links-faster-too": (
        "More doubled than was bought",
        "Each cause hangs on one resource: arithmetic, links inside the node, or the network.",
    ),
    "hidden-can-be-saved": (
        "Hidden time taken for time to save",
        "What runs beside compute and ends before it does not lengthen the step. To make it faster brings nothing.",
    ),
    "fit-is-no-prediction": (
        "A fitted row taken for a prediction",
        "A row to which the constants were fitted must fit. Only rows that the model had not seen test it.",
    ),
    "signs-cancel": (
        "Errors of both signs added up",
        "Too fast here and too slow there are two errors. Take their sizes before the mean.",
    ),
    "misses-left-out": (
        "Misses left out",
        "A choice of rows is a choice of errors. The misses say where the model ends.",
    ),
    "steps-for-seconds": ("Steps taken for seconds", "A step takes several seconds."),
    "failures-left-out": (
        "Writing alone",
        "Work done again and restarts come on top, once for each failure.",
    ),
    "run-longer-than-wanted": ("A plan that misses its date", "Failures and checkpoints count, too."),
    "run-shorter-than-wanted": ("A plan rejected that holds", "Add up steps and failures again."),
    # long sequences and experts (chapter 07)
    "diagonal-forgotten": (
        "The half-masked block miscounted",
        "A rank's block with itself is half masked: it counts for half a block.",
    ),
    "mask-forgotten": ("The mask left out", "Under a causal mask half of all pairs are not computed."),
    "one-rank-tokens": (
        "One rank's tokens taken for the sequence, or the reverse",
        "A rank holds 1/*c* of the sequence.",
    ),
    "query-heads-travel": (
        "Query heads taken to travel",
        "Queries stay where they are. What travels are keys and values: *g* heads, not *a*.",
    ),
    "keys-only": ("Values left out", "Keys *and* values travel."),
    "keys-twice": ("Keys and values counted twice", "They are in the formula already."),
    "both-passes": ("Both passes counted", "The question asks for the forward pass."),
    "mask-fits-blocks": (
        "A zigzag taken to fit any mask",
        "It evens a causal mask over one sequence. Where documents are packed, work is uneven again.",
    ),
    "neighbouring-pieces": (
        "Pieces that are not each other's mirror image",
        "An early piece has little to do and a late one much: the sum is even only for mirror images.",
    ),
    "own-tokens-only": (
        "A rank's own tokens only",
        "Its queries also meet the keys that come from the other ranks.",
    ),
    "balance-without-need": (
        "A remedy where nothing is uneven",
        "Without a mask every query meets every key, whoever holds it.",
    ),
    "experts-for-ranks": (
        "The busiest expert in place of the busiest rank",
        "A rank computes all its experts, and the layer waits for a rank.",
    ),
    "dropped-for-empty": (
        "Dropped copies and empty slots mixed up",
        "A full expert drops copies; another one's slots stay empty. Both happen at once.",
    ),
    "limit-is-free": (
        "A capacity limit taken for free",
        "Copies above it are dropped, and slots below it travel empty.",
    ),
    "tokens-cancel": (
        "The number of tokens or copies taken to matter",
        "Every copy is sent and computed: bytes and FLOP grow alike, and their ratio stays.",
    ),
    "gate-forgotten": (
        "Two matrices in place of three",
        "An expert with a gate has three matrices, 6·*h*·*f* FLOP for a copy.",
    ),
    "one-copy": ("One copy of each token", "A token goes to *k* experts, a copy to each."),
}
