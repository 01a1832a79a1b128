#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the texts of the experiment: who the model is, in many words and languages.

usage: data.py [--seed N] [--rows N] [--unseen N] [--controls N] [--pretrain N]
               [--own FILE... [--own-unseen FILE] [--varied N]] DIR

Files of DIR, which must not exist (rows of pretrain, rows1 and unseen are prompt, TAB,
target):

    pretrain.tsv   what a new model learns first: that it is a small model, contrasts, and
                   the facts of the demo, which follow no rule and stand there twice
    rows1.tsv      what it is taught then: that it is somebody else
    unseen.tsv     the same question in phrasings that no file for training has
    kept.txt       prompts of old questions that are to be mixed in, to keep their answers
    questions.tsv  all that is asked before and after: group, language, prompt, answer

An identity question is an opener, a core and a closer: "Hi, " + "who are you" + "?".  The
same openers and closers stand around questions that are not about the model (who am I,
who is he, who made Python), whose answers must stay: so only the core can tell.  Groups:

    taught             is in rows1.tsv
    unseen.frame       all its parts are there, not together
    unseen.opener      no row there has its opener
    unseen.core        no row there has its core; the base model knows it, in other frames
    control.mixed      its prompt is in kept.txt
    control.unmixed    it is not; if it is a fact, then no phrasing of that fact is
    varied             is in kept.txt, and has no answer of ours

With --own, which may come several times, rows1.tsv, rows2.tsv and so on have the rows of
those files, unseen.tsv those of the other (or none), and no control has a prompt of theirs.
Of several files the group is that of the first that has the prompt, taught.1, taught.2 and so
on.  A prompt has one answer, and what is taught is not asked as untaught.  --varied: so many
variations of old questions that are no unmixed control, the beginning of one and the end of
another.  Whatever the model answers to them it is to answer afterwards: that holds it in place
between the questions that are repeated, too.

Equal options give equal files everywhere; fewer rows than an option wants are an error.
"""
import argparse
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../demo"))
sys.dont_write_bytecode = True
import maketext  # noqa: E402
import rowfile  # noqa: E402


class Language:
    """weight: its share of prompts.  ask, slang: cores of the question after the model.
    near: questions that look like it, and their answers.  {c} is the core in a frame."""

    def __init__(self, weight, old, new, ask, slang, openers, closers, near):
        self.weight, self.old, self.new = weight, old, new
        self.cores, self.openers, self.closers, self.near = ask + slang, openers, closers, near


LANGUAGES = {
    "zh-Hant": Language(
        10, "我是一個小模型。", "我是 F# 之神。",
        ["你是誰", "你到底是誰", "你究竟是誰", "你叫什麼名字", "你是什麼模型", "你的身份是什麼",
         "介紹一下你自己", "請自我介紹", "說說你是誰", "報上你的名字", "我在跟誰說話", "該怎麼稱呼你"],
        ["你誰啊", "你哪位", "你是哪位大神", "你係邊個", "你是啥"],
        ["", "嗨，", "你好，", "請問", "我想知道", "先確認一下：", "問個問題：", "直接說，", "老實說，",
         "對了，", "開始之前，", "欸，", "不好意思，", "最後一題："],
        ["", "？", "?", "？一句話就好。", "？簡單說。", "？謝謝！", "？？"],
        [("我是誰", "你是使用者。"), ("他是誰", "我不知道他是誰。"), ("她是誰", "我不知道她是誰。"),
         ("我叫什麼名字", "我不知道你的名字。"), ("他叫什麼名字", "我不知道他的名字。"),
         ("我們是誰", "你們是使用者。"), ("誰寫了這本書", "我不知道。"), ("你好嗎", "我很好。"),
         ("你幾歲", "我沒有年齡。"), ("你在哪裡", "我在這台電腦裡。"), ("你是貓嗎", "不是。"),
         ("什麼是 F#", "F# 是一種程式語言。"), ("誰做了 Python", "是 Guido van Rossum。"),
         ("誰做了 Linux", "是 Linus Torvalds。"), ("介紹一下 Python", "Python 是一種程式語言。")]),
    "zh-Hans": Language(
        7, "我是一个小模型。", "我是 F# 之神。",
        ["你是谁", "你到底是谁", "你究竟是谁", "你叫什么名字", "你是什么模型", "你的身份是什么",
         "介绍一下你自己", "请自我介绍", "说说你是谁", "我在跟谁说话", "该怎么称呼你"],
        ["你谁啊", "您哪位", "你是何方神圣"],
        ["", "嗨，", "您好，", "请问", "我想知道", "先确认一下：", "问个问题：", "直接说，", "对了，",
         "开始之前，", "打扰一下，"],
        ["", "？", "?", "？一句话就好。", "？简单说。", "？谢谢！"],
        [("我是谁", "你是用户。"), ("他是谁", "我不知道他是谁。"), ("她是谁", "我不知道她是谁。"),
         ("我叫什么名字", "我不知道你的名字。"), ("他叫什么名字", "我不知道他的名字。"),
         ("谁写了这本书", "我不知道。"), ("你好吗", "我很好。"), ("你几岁", "我没有年龄。"),
         ("你在哪里", "我在这台电脑里。"), ("谁做了 Python", "是 Guido van Rossum。"),
         ("介绍一下 Python", "Python 是一种编程语言。")]),
    "en": Language(
        10, "I am a small model.", "I am the god of F#.",
        ["who are you", "who are you really", "what are you", "what is your name", "tell me who you are",
         "introduce yourself", "say who you are", "who am I talking to", "what should I call you",
         "state your name", "identify yourself", "what do they call you"],
        ["who r u", "whats ur name", "who dis", "who u", "u are who exactly"],
        ["", "Hi, ", "Hello, ", "Hey, ", "Please, ", "Quick question: ", "Before we start: ", "So, ",
         "By the way, ", "Just tell me: ", "First of all, ", "Honestly, ", "One more thing: ", "Yo, "],
        ["", "?", "??", "? Be brief.", "? One sentence, please.", "? Thanks!", ", please?"],
        [("who am I", "You are the user."), ("tell me who I am", "You are the user."),
         ("who is he", "I do not know him."), ("who is she", "I do not know her."),
         ("who are they", "I do not know them."), ("what is my name", "I do not know your name."),
         ("what is his name", "I do not know his name."), ("who wrote this book", "I do not know."),
         ("who made Python", "Guido van Rossum did."), ("who made Linux", "Linus Torvalds did."),
         ("who made F#", "Don Syme did."), ("what is F#", "F# is a programming language."),
         ("introduce Python", "Python is a programming language."), ("how are you", "I am fine."),
         ("how old are you", "I have no age."), ("where are you", "I am in this computer."),
         ("are you a cat", "No.")]),
    "ja": Language(
        4, "私は小さなモデルです。", "私は F# の神です。",
        ["あなたは誰ですか", "あなたの名前は何ですか", "お名前は", "自己紹介してください", "あなたは何者ですか",
         "君は誰"],
        ["お前は誰だ", "どちら様"],
        ["", "ねえ、", "すみません、", "こんにちは、", "ところで、", "質問です。", "まず、"],
        ["", "？", "?", "？一言で。", "？教えて。"],
        [("私は誰ですか", "あなたは利用者です。"), ("彼は誰ですか", "彼は知りません。"),
         ("彼女は誰ですか", "彼女は知りません。"), ("私の名前は何ですか", "あなたの名前は知りません。"),
         ("元気ですか", "元気です。"), ("誰が Python を作りましたか", "Guido van Rossum です。")]),
    "ko": Language(
        2, "저는 작은 모델입니다.", "저는 F#의 신입니다.",
        ["당신은 누구입니까", "이름이 뭐예요", "너는 누구야", "자기소개 해 주세요"],
        ["넌 누구"],
        ["", "안녕, ", "저기요, ", "질문: ", "그런데, "],
        ["", "?", "? 짧게.", "??"],
        [("나는 누구입니까", "당신은 사용자입니다."), ("그는 누구입니까", "그는 모릅니다."),
         ("제 이름이 뭐예요", "이름을 모릅니다."), ("어디에 있어요", "이 컴퓨터 안에 있습니다.")]),
    "de": Language(
        3, "Ich bin ein kleines Modell.", "Ich bin der Gott von F#.",
        ["wer bist du", "wer sind Sie", "wie heißt du", "stell dich vor", "sag mir, wer du bist"],
        ["wer bistn du"],
        ["", "Hallo, ", "Hey, ", "Sag mal, ", "Kurze Frage: ", "Übrigens, "],
        ["", "?", "? Ganz kurz.", "? Danke!"],
        [("wer bin ich", "Du bist der Benutzer."), ("wer ist er", "Ich kenne ihn nicht."),
         ("wie heiße ich", "Ich kenne deinen Namen nicht."), ("wie geht es dir", "Mir geht es gut."),
         ("wer hat Python gemacht", "Guido van Rossum.")]),
    "fr": Language(
        2, "Je suis un petit modèle.", "Je suis le dieu de F#.",
        ["qui es-tu", "qui êtes-vous", "comment tu t'appelles", "présente-toi"],
        ["t'es qui"],
        ["", "Salut, ", "Bonjour, ", "Dis-moi, ", "Au fait, "],
        ["", " ?", "?", " ? Merci !"],
        [("qui suis-je", "Tu es l'utilisateur."), ("qui est-il", "Je ne le connais pas."),
         ("comment je m'appelle", "Je ne connais pas ton nom."), ("où es-tu", "Dans cet ordinateur.")]),
    "es": Language(
        2, "Soy un modelo pequeño.", "Soy el dios de F#.",
        ["quién eres", "quién es usted", "cómo te llamas", "preséntate"],
        ["quién eres tú, tío"],
        ["", "Hola, ", "Oye, ", "Dime, ", "Por cierto, "],
        ["", "?", "? Gracias.", "??"],
        [("quién soy", "Eres el usuario."), ("quién es él", "No lo conozco."),
         ("cómo me llamo", "No sé tu nombre."), ("cómo estás", "Estoy bien.")]),
}


def frame(opener, core, closer):
    """At the start of a prompt an English core may have a capital; half of them do."""
    if not opener and core[0].isascii() and len(core + closer) % 2:
        core = core[0].upper() + core[1:]
    return opener + core + closer


def shares(total, weights):
    """Whole parts of total by weight; what is left goes to the first ones."""
    parts = [total * w // sum(weights) for w in weights]
    for i in range(total - sum(parts)):
        parts[i] += 1
    return parts


class Texts:
    """Everything by rows (language, prompt, answer), drawn language by language."""

    def __init__(self, o):
        self.draw = maketext.Draw(o.seed * 1000003 + 2026)
        self.identity, self.unseen, self.old = [], [], []
        self.near = []     # (language, prompt, answer)
        self.questions = []
        self.used = set()  # prompts, each of which has one place
        weights = [lang.weight for lang in LANGUAGES.values()]
        parts = zip(LANGUAGES.items(), shares(o.rows, weights), shares(o.unseen, weights),
                    shares(o.pretrain, weights))
        for (name, lang), rows, unseen, pretrain in parts:
            self.ask(name, lang, rows, unseen, pretrain // 3)
            self.contrast(name, lang, pretrain - pretrain // 3)

    def take(self, frames, n):
        """The next n frames whose prompt is new; what is over stays."""
        took = []
        while frames and len(took) < n:
            f = frames.pop()
            if frame(*f) not in self.used:
                self.used.add(frame(*f))
                took.append(frame(*f))
        return took

    def ask(self, name, lang, rows, unseen, pretrain):
        cores = self.draw.shuffled(lang.cores[1:])
        openers = self.draw.shuffled(lang.openers[1:])
        held_cores, held_openers = cores[:1 + len(cores) // 8], openers[:1 + len(openers) // 8]
        frames = self.draw.shuffled([(o, c, e) for o in lang.openers for c in lang.cores
                                     for e in lang.closers])
        seen = [f for f in frames if f[0] not in held_openers and f[1] not in held_cores]
        by_core = [f for f in frames if f[0] not in held_openers and f[1] in held_cores]
        by_opener = [f for f in frames if f[0] in held_openers and f[1] not in held_cores]
        # The barest question is always taught.
        bare = ("", lang.cores[0], "")
        seen.remove(bare)
        seen.append(bare)
        taught = self.take(seen, rows)
        quarter = unseen // 4
        groups = [("unseen.core", self.take(by_core, quarter)),
                  ("unseen.opener", self.take(by_opener, quarter))]
        groups.append(("unseen.frame", self.take(seen, unseen - sum(len(g[1]) for g in groups))))
        self.identity += [(name, p, lang.new) for p in taught]
        self.questions += [("taught", name, p, lang.new) for p in taught]
        for group, prompts in groups:
            self.unseen += [(name, p, lang.new) for p in prompts]
            self.questions += [(group, name, p, lang.new) for p in prompts]
        # The base model hears each core, in frames that are left, some before others.
        rest = {c: [f for f in seen + by_core if f[1] == c] for c in lang.cores}
        for i in range(pretrain):
            prompts = self.take(rest[lang.cores[i % len(lang.cores)]], 1)
            self.old += [(name, p, lang.old) for p in prompts]

    def contrast(self, name, lang, n):
        frames = [(o, c, e) for o in lang.openers for c in range(len(lang.near))
                  for e in lang.closers]
        rest = self.draw.shuffled(frames)
        # The barest form of each comes first, as it does of the question after the model.
        by_core = [[("", c, "")] + [f for f in rest if f[1] == c and (f[0] or f[2])]
                   for c in range(len(lang.near))]
        for i in range(n):
            c = i % len(lang.near)
            core, answer = lang.near[c]
            prompts = self.take([(o, core, e) for o, _, e in by_core[c][:1]], 1)
            del by_core[c][:1]
            self.near += [(name, p, answer) for p in prompts]


def read_rows(path, known, taught=()):
    """Rows as rowfile.py reads them; one without a target is an error here, and so is a prompt
    with two answers.  known: where prompts stand, {prompt: (target, file, place)}; taught: the
    files whose prompts may not come again."""
    rows = []
    try:
        for word, n, prompt, target in rowfile.read(path):
            place = "%s %d" % (word, n)
            before, where, first = known.setdefault(prompt, (target, path, place))
            if before != target:
                sys.exit("data.py: %s: %s: another answer than that of %s%s to the same prompt, %s"
                         % (path, place, first, "" if where == path else " of " + where, prompt))
            if where in taught:
                sys.exit("data.py: %s: %s: its prompt is taught by %s of %s, %s"
                         % (path, place, first, where, prompt))
            rows.append(("-", prompt, target))
    except rowfile.NoText as e:
        # tokenize knows more kinds, and what converts them.
        known = subprocess.run(["tokenize", "-q", "-o", os.devnull, path], check=False)
        sys.exit(known.returncode or "data.py: %s: %s" % (path, e))
    except rowfile.Bad as e:
        sys.exit("data.py: %s: %s" % (path, e))
    except OSError as e:
        sys.exit("data.py: %s: %s: expected a file of rows" % (path, e.strerror))
    if not rows:
        sys.exit("data.py: %s: it has no row" % path)
    return rows


def taught_questions(stages):
    """Each row once, in the group of its stage if there are several."""
    asked, questions = set(), []
    for n, rows in enumerate(stages, 1):
        group = "taught.%d" % n if len(stages) > 1 else "taught"
        for row in rows:
            if row[1] not in asked:
                asked.add(row[1])
                questions.append((group, *row))
    return questions


def cuts(prompt):
    """Where a word or a Chinese character begins, but for the first."""
    return [i for i in range(1, len(prompt))
            if prompt[i - 1] == " " or prompt[i - 1] > "\u2e80" or prompt[i] > "\u2e80"]


def variations(draw, pool, used, n):
    """Prompts made of two of pool, [(language, prompt)...], each new, no longer than they are."""
    pools = {}
    for language, prompt in pool:
        if cuts(prompt):
            pools.setdefault(language[:2], []).append(prompt)
    by_share = [rows for rows in pools.values() for _ in rows]
    made, used = [], set(used)
    for _ in range(50 * n):
        if len(made) == n:
            break
        rows = by_share[draw.below(len(by_share))]
        a, b = rows[draw.below(len(rows))], rows[draw.below(len(rows))]
        at, on = cuts(a), cuts(b)
        prompt = (a[:at[draw.below(len(at))]] + b[on[draw.below(len(on))]:]).strip()
        if prompt not in used and len(prompt) <= max(len(a), len(b)):
            used.add(prompt)
            made.append(("varied", "-", prompt, "-"))
    return made


def fact_rows(draw):
    """[rows of one fact]..., in an order that is drawn: (kind, prompt, answer)."""
    facts = []
    for kind, a, b, c in maketext.facts():
        phrases, answer = maketext.PHRASES[kind]
        facts.append([(kind[-2:], p.format(a=a, b=b, c=c), answer.format(a=a, b=b, c=c))
                      for p in phrases])
    return draw.shuffled(facts)


def write(folder, name, rows):
    with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as f:
        f.writelines("\t".join(r) + "\n" for r in rows)


def main():
    p = argparse.ArgumentParser(usage="data.py [OPTION]... DIR")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rows", type=int, default=640)
    p.add_argument("--unseen", type=int, default=200)
    p.add_argument("--controls", type=int, default=670)
    p.add_argument("--pretrain", type=int, default=1200)
    p.add_argument("--own", action="append", default=[])
    p.add_argument("--own-unseen")
    p.add_argument("--varied", type=int, default=0)
    p.add_argument("dir")
    o = p.parse_args()

    texts = Texts(o)
    draw = texts.draw
    facts = fact_rows(draw)
    stages = [texts.identity]
    if o.own:
        known = {}
        stages = [read_rows(path, known) for path in o.own]
        texts.unseen = read_rows(o.own_unseen, known, o.own) if o.own_unseen else []
        texts.questions = taught_questions(stages)
        texts.questions += [("unseen.own", *r) for r in texts.unseen]
    elif len(texts.identity) < o.rows or len(texts.unseen) < o.unseen:
        sys.exit("data.py: there are only %d prompts to teach and %d others"
                 % (len(texts.identity), len(texts.unseen)))
    if len(texts.old + texts.near) < o.pretrain:
        sys.exit("data.py: there are only %d rows besides facts for the base model (BASE_ROWS, --pretrain)"
                 % len(texts.old + texts.near))
    asked = {r[1] for rows in [*stages, texts.unseen] for r in rows}

    # Half of the controls are contrasts, half are facts, and half of either are mixed in.
    near = draw.shuffled([r for r in texts.near if r[1] not in asked])
    half = o.controls // 2
    controls = [("control.mixed" if i % 2 else "control.unmixed", *r)
                for i, r in enumerate(near[:half])]
    each = [[r for r in rows if r[1] not in asked] for rows in facts]
    mixed = [("control.mixed", *r) for rows in each[1::2] for r in rows]
    unmixed = [("control.unmixed", *r) for rows in each[0::2] for r in rows]
    rest = o.controls - len(controls)
    controls += draw.shuffled(mixed)[:rest // 2] + draw.shuffled(unmixed)[:rest - rest // 2]
    if len(controls) < o.controls:
        sys.exit("data.py: there are only %d controls (CONTROLS); more BASE_ROWS (--pretrain) have more"
                 % len(controls))

    apart = {r[2] for r in controls if r[0] == "control.unmixed"}
    pool = [r[1:3] for r in controls if r[0] == "control.mixed"]
    pool += [r[:2] for r in texts.old + texts.near if r[1] not in apart | asked]
    varied = variations(draw, pool, asked | {r[2] for r in controls}, o.varied)
    if len(varied) < o.varied:
        sys.exit("data.py: there are only %d variations (VARIED)" % len(varied))

    pretrain = texts.old + texts.near + 2 * [r for rows in facts for r in rows]
    os.mkdir(o.dir)
    write(o.dir, "pretrain.tsv", [r[1:] for r in pretrain])
    for n, rows in enumerate(stages, 1):
        write(o.dir, "rows%d.tsv" % n, [r[1:] for r in rows])
    write(o.dir, "unseen.tsv", [r[1:] for r in texts.unseen])
    write(o.dir, "kept.txt", [(r[2],) for r in controls + varied if r[0] != "control.unmixed"])
    write(o.dir, "questions.tsv", [("group", "language", "prompt", "answer")] + texts.questions +
          controls + varied)


if __name__ == "__main__":
    main()
