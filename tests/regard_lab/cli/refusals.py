"""What each command refuses: a table for each beginning of a command line, and a sentence for each row.

A row is the rest of the command line and words of the sentence, with `->` between them. The exit code is 2, or that
before a colon. {names} are the places of the fixture in `test_mistakes.py`.
"""

REFUSALS = {
    "": """
        shwo -> shwo
        train translator -> translator
    """,
    "show": """
        cuasal -> at character 1: there is no pattern 'cuasal'; did you mean 'causal'?
        causal --lenght 3 -> --lenght
        causal --length 0 -> --length is 0; it has to be at least 1
        causal --png picture.jpg -> ends in .png
        causal --png {missing}/a.png -> its folder does not exist
        causal --list -> leave it out to draw 'causal'
        causal --length 8 --keys 4 --layers 2 -> a stack needs a position for every query
    """,
    "plan": """
        -> --q-len
    """,
    "plan --q-len 8": """
        --pattern caual -> there is no pattern 'caual'; did you mean 'causal'?
        --device tpu -> device 'tpu' is not supported; there are cpu, cuda
        --want nonsense -> want='nonsense' is no statistic
        --backend magic -> backend 'magic' does not exist
        --heads 8 --kv-heads 3 -> heads must be a multiple of kv-heads
        --softcap 30 --backend fused -> have no softcap
        --k-len 2000000000000000000 -> must be a number from 0 to
    """,
    "train translation": """
        -> --out
        --out {new} -> --data is missing: name a file of sentence pairs
        --out {new} --data missing.tsv -> missing.tsv does not exist
        --out {new} --data {empty} -> {empty}
        --out {new} --data pronouns --valid {pairs} -> valid
        --out {run} --data {pairs} -> holds a saved model
    """,
    "train translation --out {new} --data {pairs}": """
        --size smal -> did you mean 'small'?
        --attention x -> there is no pattern 'x'; 'regard show --list' prints all
        --minutes=-1 -> --minutes is -1;
        --learning-rate nan -> --learning-rate is nan; it needs a finite number
        --mechanism magic -> there is no mechanism 'magic'
        --mechanism linear --attention sliding_window(8) -> not sliding_window(8)
        --mechanism 'linformer(2, 1)' -> the longest source has
        --model gpt -> model 'gpt' does not exist; there are transformer, bahdanau
        --model bahdanau --heads 2 -> --heads belongs to the Transformer
        --model bahdanau --gradient-checkpointing -> belongs to the Transformer
    """,
    "train language-model": """
        --out {new} -> --data is missing: name a file of text
        1: --out {new} --data {blank} -> has no text
    """,
    "train language-model --out {new} --data {text}": """
        --attention diagonal -> diagonal
        --batch-tokens 16 -> a block of text has 256 ids
    """,
    "train masked-words": """
        --out {new} -> --data is missing
    """,
    "train classifier": """
        --out {new} -> --data is missing: name a .tsv of label TAB text
        --out {new} --data {text} -> labels are read from a .tsv
        --out {new} --data {labels} --from x --dim 32 -> --from x decides dim
        1: --out {new} --data {labels} --valid {strange} -> never teaches
    """,
    "convert kv-heads": """
        {sorter} --kv-heads 1 --text {text} --out {new} -> regard train classifier --from
        {wordless} --kv-heads 1 --text {text} --out {new} -> has no tokeniser.json
    """,
    "convert kv-heads {writer} --out {new}": """
        --kv-heads 3 -> key/value heads cannot become 3
        --kv-heads 1 --method best -> there are mean, first, align
        --kv-heads 1 --uptrain-steps 5 -> --uptrain-steps needs --text
    """,
    "export": """
        -> Missing argument
        {run} -> give one of --to and --onnx
        {run} --to ctranslate2 -> writes a folder; name it: --out FOLDER
        {run} --to onnx -> writes a folder; name it: --out FOLDER
        {run} --to ctranslate -> to is 'ctranslate'; did you mean 'ctranslate2'?
        {run} --to '' --out {new} -> to is ''
        {run} --to CTRANSLATE2 --out {new} -> there are ctranslate2, onnx
        {run} --to ctranslate2 --onnx a.onnx --out {new} -> give one of --to and --onnx
        {run} --onnx a.onnx --out {new} -> --out goes with --to
        {run} --onnx a.onnx --weights int8 -> --weights goes with --to
        {run} --onnx a.onnx --replace -> --replace goes with --to
        {run} --onnx a.onnx --opset 3 -> --opset is 3; it has to be at least 18
        {run} --onnx {empty} -> ends in .onnx
        {run} --to onnx --out {new} --opset 23 -> --opset goes with --onnx
        {run} --to onnx --out {new} --weights int8 -> ONNX files are written in float32
        {run} --to ctranslate2 --out {new} --weights int4 -> weights is 'int4'
        {run} --to ctranslate2 --out {new} --weights '' -> weights is ''
        {run} --to ctranslate2 --out {run} -> is the folder of the original
        {run} --to ctranslate2 --out {run}/inside -> contain each other
        {run} --to ctranslate2 --out {run}/inside --replace -> contain each other
        {run} --to ctranslate2 --out {writer} -> exists already
        {run} --to ctranslate2 --out {writer} --replace -> is not an earlier export
        {run} --to ctranslate2 --out {file} -> exists already
        {run} --to ctranslate2 --out {file} --replace -> is not an earlier export
        {run} --to ctranslate2 --out {new} extra -> takes one text, and 'extra' is left over
        {missing} --to ctranslate2 --out {new} -> does not exist
        {empty} --to ctranslate2 --out {new} -> {empty}
        {file} --to ctranslate2 --out {new} -> {file}
        1: {damaged} --to ctranslate2 --out {new} -> config.json
        {writer} --to ctranslate2 --out {new} -> language-model
        {sorter} --to onnx --out {new} -> text-encoder
        {wordless} --to onnx --out {new} -> tokeniser.json
    """,
    "train translation --out {new} --data {pairs} --for": """
        '' -> --for is ''
        onnx -> --for is 'onnx'
        ctranslate -> --for is 'ctranslate'; did you mean 'ctranslate2'?
        ctranslate2 --attention 'sliding_window(4)' -> the pattern of its encoder (--attention) is sliding_window(4)
        ctranslate2 --decoder-attention 'causal_window(3)' -> the pattern of its decoder (--decoder-attention)
        ctranslate2 --cross-attention 'sliding_window(4)' -> the pattern of its cross-attention (--cross-attention)
        ctranslate2 --mechanism linear -> the mechanism of its encoder (--mechanism) is linear
        ctranslate2 --model bahdanau -> it holds Transformers, and --model is bahdanau
        ctranslate2 --attention caual -> there is no pattern 'caual'
    """,
    "translate": """
        {missing} hello -> does not exist
        {empty} hello -> {empty}
        1: {damaged} hello -> config.json
        {run} a b --picture x.png -> one sentence
        {run} a --beam 1000000 -> it is a whole number from 1 to 65,536
        {run} --input {text} --out x.txt.gz -> lines are written plain; name it x.txt
        {run} a --count 3 -> --count is 3 and --beam 1; a beam keeps as many as its size: give --beam 3
        {run} a --beam 2 --count 2 --map cross -> --count 2 gives several translations of a sentence, and --map
        {run} --input {text} --out {new} --beam 2 --count 2 -> and --out takes one; add --json
        {run} a --min-length 9 --max-length 3 -> the longest text is 3 ids, and min_length needs 9
        {run} a --prefix 'the street animal' --max-length 1 -> the longest text is 1 ids, and the prefix needs
        {run} a --repetition-penalty 0.9 -> --repetition-penalty is 0.9; it has to be at least 1
        {run} a --no-repeat 0 -> --no-repeat is 0; it has to be at least 1
        {run} a --map corss -> --map 'corss' does not exist; did you mean 'cross'?
        {run} a --layer 1 --head 0 -> --layer and --head need --map, such as --map cross
        {run} a --map cross --json -> leave one of them out
        {run} a --why es --instead ' , ' -> --instead is empty
        {run} a b --why es --instead er -> 2 were given
        {run} a --lens erase --place 1 -> --lens and --place belong to --why
        {run} 'the animal' --why Zebrafink -> 'Zebrafink' is not in it
        {run} a --why es --instead er --lens glasses -> no lens 'glasses'
    """,
    "generate": """
        {run} x -> translation-transformer
        {writer} a --beam 2 --top-k 3 -> leave out --top-k
        {writer} a --top-k 0 -> top_k is 0; give 1 or more, or leave it out to draw from all ids
        {writer} a --stop '' -> stops are
        {writer} a --speculate lookup --draft {writer} -> both propose sub-words; give one of them
        {writer} a --speculate look -> speculate is 'look'; did you mean 'lookup'?
        {writer} a --draft {run} -> translation-transformer
        {writer} a --cache pagd -> kind is 'pagd'; did you mean 'paged'?
        {writer} a --compile --draft {writer} -> --compile and --draft exclude each other
        {writer} a --compile --beam 2 -> --compile and --beam exclude each other
        {writer} a --compile --cache-dtype int8 -> --compile and --cache-dtype exclude each other
        {writer} a --compile --cache paged -> --compile and --cache exclude each other
    """,
    "classify": """
        {file} x -> {file}
        {run} x -> translation-transformer
    """,
    "evaluate": """
        {run} missing.tsv -> missing.tsv does not exist
        {run} -> keeps no test split
        {writer} {text} --beam 2 -> --beam is for translators
        {sorter} {labels} --beam 2 -> --beam is for translators
    """,
    "compare": """
        --out {new} --data {pairs} --runs {run} -> name two or more
        --out {new} --data {pairs} --runs {run},{writer} -> compare models of one kind
    """,
    "heads": """
        {missing} -> does not exist
        {run} --measure noise -> --measure 'noise' does not exist; there are loss, bleu
        {run} a --measure loss --why es -> leave one out
        {run} a --instead er -> --instead belongs to --why
        {run} a --head 9.9 -> there is no head 'self 9.9'
        {run} a --measure noun -> without TEXT
        {run} a --by resample -> one was given
        {run} a --picture a.jpg -> ends in .png, .svg or .pdf
    """,
    "lenses": """
        {empty} -> {empty}
        {run} --sentences 2 -> regard demo
    """,
    "view": """
        {run} a --lens glasses -> no lens 'glasses'
        {run} ' ' -> the TEXT is empty
        {run} a --export page.txt -> is HTML; give it a name that ends in .html
        {run} a --instead es --place 1 -> --instead and --place belong to --why
        {writer} a --why es --instead er -> --why of a page is for translations
        {run} a --with {writer} -> cannot be compared: one translates
    """,
    "lesson": """
        causl -> did you mean 'causal'
        causal --list -> leave it out for lesson 'causal'
        --png a.png -> --png needs the name of a lesson
        scale --run {missing} -> lesson scale has no run
        scale --answer 32 -> --answer belongs to an exercise; add --exercise NUMBER
        scale --exercise 1 --seed 3 -> --seed changes the lesson
        scale --exercise 1 --answer 32 --solution -> --answer and --solution exclude each other
        --exercise 1 -> --exercise needs the name of a lesson
        causal --text '' -> 0 words
        causal --seed 99999999999999999999 -> at most 4294967295
    """,
    "walkthrough": """
        -> give a TEXT or an --example
        a b --word 9 -> put a text of several words in quotes, as in regard walkthrough "a b
    """,
    "walkthrough 'a b'": """
        --word 9 -> the text has words 1 to 2
        --word cake -> 'cake' is not in the text
        --heads=129 -> --heads is 129; it has to be at most 128
        --example life-is-short -> not both
        --weights {missing} -> cannot be read as safetensors
        --run {missing} --causal -> leave out --causal: a run has its own
        --model encoder -> add --whole
        --whole --head 1 --causal -> leave out --causal, --head: a whole model shows all
    """,
    "bench": """
        plane -> did you mean 'plain'?
        complexity -> no case is called 'complexity'; there are plain
        plain --resume --out {empty} -> {empty}
    """,
    "doctor": """
        now -> now
    """,
}
