"""Wordings of the demo model's lessons: how people ask, and what it answers about itself.
Only data and the smallest helpers live here; lessons.py puts numbers in and adds the working."""

# {a} and {b} are the operands in the order of the expression a op b.
ASK = {
    "add": [
        "what is {a} + {b}", "what is {a}+{b}", "what's {a} + {b}", "what is {a} plus {b}", "what does {a} + {b} equal",
        "how much is {a} + {b}", "how much is {a} plus {b}", "what do you get if you add {a} and {b}",
        "what is the sum of {a} and {b}", "what's the sum of {a} and {b}", "what is {a} added to {b}",
        "what do {a} and {b} make together", "how many are {a} and {b} together", "what is the total of {a} and {b}",
    ],
    "sub": [
        "what is {a} - {b}", "what is {a}-{b}", "what's {a} - {b}", "what is {a} minus {b}", "what does {a} - {b} equal",
        "how much is {a} - {b}", "how much is {a} minus {b}", "what do you get if you subtract {b} from {a}",
        "what is left if you take {b} from {a}", "what is {b} subtracted from {a}", "what's {a} take away {b}",
        "what is the difference of {a} and {b}", "what is {b} less than {a}",
    ],
    "mul": [
        "what is {a} * {b}", "what is {a}*{b}", "what's {a} * {b}", "what is {a} times {b}", "what is {a} × {b}",
        "what is {a} x {b}", "what does {a} * {b} equal", "how much is {a} times {b}", "how much is {a} * {b}",
        "what is the product of {a} and {b}", "what do you get if you multiply {a} by {b}",
        "what is {a} multiplied by {b}", "what do {a} times {b} make",
    ],
}

ORDER = {
    "add": [
        "add {a} and {b}", "add {a} to {b}", "compute {a}+{b}", "compute {a} + {b}", "calculate {a} + {b}",
        "calculate {a} plus {b}", "work out {a} + {b}", "find the sum of {a} and {b}", "sum {a} and {b}",
        "give me {a} plus {b}", "tell me {a} + {b}", "evaluate {a} + {b}", "solve {a} + {b}",
    ],
    "sub": [
        "subtract {b} from {a}", "take {b} from {a}", "compute {a}-{b}", "compute {a} - {b}", "calculate {a} - {b}",
        "calculate {a} minus {b}", "work out {a} - {b}", "take {b} away from {a}", "give me {a} minus {b}",
        "tell me {a} - {b}", "evaluate {a} - {b}", "solve {a} - {b}",
    ],
    "mul": [
        "multiply {a} by {b}", "multiply {a} and {b}", "compute {a}*{b}", "compute {a} * {b}", "calculate {a} * {b}",
        "calculate {a} times {b}", "work out {a} * {b}", "work out {a} × {b}", "find the product of {a} and {b}",
        "give me {a} times {b}", "tell me {a} * {b}", "evaluate {a} * {b}", "solve {a} x {b}",
    ],
}

BARE = {
    "add": ["{a}+{b}", "{a} + {b}", "{a} plus {b}", "{a} + {b} =", "{a}+{b}=", "{a} + {b} = ?"],
    "sub": ["{a}-{b}", "{a} - {b}", "{a} minus {b}", "{a} - {b} =", "{a}-{b}=", "{a} - {b} = ?"],
    "mul": ["{a}*{b}", "{a} * {b}", "{a} times {b}", "{a} x {b}", "{a} × {b}", "{a}x{b}", "{a} * {b} =", "{a}*{b}="],
}

# Small stories; {n} is a thing one can count.
STORY = {
    "add": [
        "I have {a} {n} and get {b} more. How many {n} do I have now?",
        "There are {a} {n} in one box and {b} {n} in another. How many {n} are there in all?",
        "Anna has {a} {n} and Tom has {b} {n}. How many do they have together?",
        "We sold {a} {n} on Monday and {b} on Tuesday. How many did we sell?",
    ],
    "sub": [
        "I have {a} {n} and give away {b}. How many {n} are left?",
        "There were {a} {n} in the shop and {b} were sold. How many {n} remain?",
        "Anna had {a} {n} and lost {b} of them. How many does she have now?",
        "A box holds {a} {n}. I take out {b}. How many are still in the box?",
    ],
    "mul": [
        "There are {a} boxes with {b} {n} each. How many {n} are there?",
        "I buy {a} bags of {b} {n}. How many {n} do I have?",
        "Each of {a} children has {b} {n}. How many {n} do they have in all?",
        "A wall has {a} rows of {b} {n}. How many {n} are in the wall?",
    ],
}
THINGS = ["apples", "books", "coins", "stones", "pens", "eggs", "cards", "cups", "keys", "stamps", "balls", "oranges",
          "tickets", "flowers", "bricks", "chairs", "letters", "fish", "cakes", "shells"]

BEFORE_ORDER = ["", "", "", "please ", "can you ", "could you ", "would you please ", "I want you to ", "now ", "ok, ",
                "hi, ", "hello! please ", "for my homework, ", "quickly ", "help me: ", "let's see: "]
BEFORE_ASK = ["", "", "", "", "tell me, ", "please tell me, ", "hi! ", "hello, ", "quick question: ", "so, ", "and ",
              "ok, ", "hey, ", "do you know ", "I wonder, ", "let me ask: "]
BEFORE_BARE = ["", "", "", "", "compute: ", "solve: ", "now ", "please: ", "answer: ", "quick: "]
AFTER = ["", "", "", "", " please", ", please", " for me", ", thanks", " now"]

COMPARE = {
    "larger": ["which is larger, {a} or {b}", "which is bigger, {a} or {b}", "which number is greater, {a} or {b}",
               "what is the larger of {a} and {b}", "which is more, {a} or {b}", "which of {a} and {b} is larger",
               "tell me the bigger of {a} and {b}", "between {a} and {b}, which is greater"],
    "smaller": ["which is smaller, {a} or {b}", "which is less, {a} or {b}", "which number is smaller, {a} or {b}",
                "what is the smaller of {a} and {b}", "which of {a} and {b} is smaller",
                "tell me the smaller of {a} and {b}", "between {a} and {b}, which is less"],
    "is_larger": ["is {a} larger than {b}", "is {a} greater than {b}", "is {a} bigger than {b}", "is {a} more than {b}",
                  "is {a} > {b}"],
    "is_smaller": ["is {a} smaller than {b}", "is {a} less than {b}", "is {a} < {b}"],
    "compare": ["compare {a} and {b}", "compare {a} with {b}", "how does {a} compare to {b}"],
}

SORT = {
    "up": ["sort {l}", "sort these numbers: {l}", "sort the numbers {l}", "put {l} in order", "order these numbers: {l}",
           "sort {l} in ascending order", "arrange {l} from smallest to largest", "sort this list: {l}",
           "put these numbers in order from small to large: {l}", "list {l} in increasing order"],
    "down": ["sort {l} in descending order", "sort {l} from largest to smallest", "sort these numbers descending: {l}",
             "arrange {l} from large to small", "put {l} in decreasing order", "sort in reverse order: {l}",
             "order these numbers from biggest to smallest: {l}"],
}

ECHO = ["repeat: {x}", "repeat after me: {x}", "say {x}", "copy this: {x}", "echo {x}", "repeat {x}"]

JSON_ASK = ["Answer in JSON.", "Reply in JSON.", "Please answer as JSON.", "Respond with JSON only.", "Give the answer as JSON.",
            "Output JSON.", "I want JSON.", "Use JSON for the answer."]
JSON_ASK_KEY = ["Answer in JSON with the key \"{k}\".", "Reply as JSON with key \"{k}\".", "Give JSON with one field \"{k}\".",
                "Use JSON: the field is \"{k}\".", "Put it in JSON under \"{k}\"."]
JSON_SYSTEM = ["You answer in JSON.", "Always reply in JSON.", "Respond only with a JSON object.", "Output must be JSON."]
JSON_KEYS = ["answer", "result", "value", "total", "output", "number", "solution", "x", "sum", "data", "final", "res"]

FOLLOW = {
    "add": ["now add {b} to that", "add {b} to that", "plus {b}", "and plus {b}", "add {b} to the result", "now add {b}",
            "and {b} more"],
    "sub": ["now subtract {b} from that", "subtract {b}", "minus {b}", "and minus {b}", "take {b} from that",
            "now take away {b}", "subtract {b} from the result"],
    "mul": ["now multiply that by {b}", "times {b}", "and times {b}", "multiply the result by {b}", "multiply that by {b}"],
}

SYSTEM = ["You are a helpful assistant.", "You are Fathom's demo model.", "You are a helpful assistant that answers briefly.",
          "Be brief.", "Answer the user's question.", "You are a careful math tutor.", "You are a friendly helper.",
          "Today is Monday.", "You help with numbers.", "The assistant is polite and short."]

CALCULATOR = ["Evaluates an arithmetic expression.", "Compute the value of an expression.", "A calculator.",
              "Calculates the result of a mathematical expression.", "Use this to do arithmetic.",
              "Evaluate a math expression and return the number."]
EXPRESSION = ["The expression to evaluate.", "An arithmetic expression such as 2 + 3.", "Expression, for example 4 * 5.",
              "The expression.", "What to compute."]
OTHER_TOOLS = [("get_weather", "Get the weather of a city.", "city", "The city."),
               ("search", "Search the web.", "query", "What to look for."),
               ("get_time", "Get the time in a place.", "place", "Where."),
               ("translate", "Translate a text.", "text", "The text."),
               ("send_mail", "Send an e-mail.", "message", "The message.")]

# Small talk: topic -> (ways to say it, thought, answer).
TALK = {
    "hello": (["hello", "hi", "hey", "hi there", "hello there", "good morning", "good evening", "good day", "greetings", "hey there"],
              "A greeting.",
              "Hello! I am Fathom's small demo model. Ask me to add, subtract, multiply, compare or sort small numbers."),
    "how": (["how are you", "how are you doing", "how do you do", "how is it going", "how are things", "are you well", "what's up",
             "how do you feel today"],
            "A friendly question.", "I am fine, thank you. Give me some numbers to work on!"),
    "who": (["who are you", "what are you", "introduce yourself", "tell me about yourself", "what is this", "describe yourself",
             "who am I talking to", "say who you are", "what model are you", "which model is this", "what kind of model are you"],
            "A question about me.",
            "I am the small built-in demo model of Fathom. I show that the server works, and I can do simple arithmetic."),
    "name": (["what is your name", "what's your name", "do you have a name", "how are you called", "tell me your name",
              "how should I call you", "may I ask your name"],
             "A question about my name.", "I am called Fathom demo."),
    "can": (["what can you do", "what do you do", "how can you help me", "what are you good at", "what can I ask you",
             "list your skills", "what are your abilities", "help", "can you help me", "what questions can you answer",
             "what do you know"],
            "A question about my skills.",
            "I can add and subtract numbers up to 999, multiply up to 99 × 99, compare two numbers and sort short lists."),
    "maker": (["who made you", "who built you", "who created you", "who trained you", "where do you come from",
               "who is your maker", "who wrote you", "how were you made", "how were you trained"],
              "A question about where I come from.",
              "I was trained for the Fathom project by a script in its repository, on questions the script made up."),
    "size": (["how big are you", "how large are you", "how many parameters do you have", "what is your size", "are you a big model",
              "are you small", "how small are you", "how many experts do you have", "what is your architecture",
              "are you like DeepSeek-V3", "how are you built"],
             "A question about my size.",
             "I am tiny: a few million parameters, built like DeepSeek-V3 with latent attention and a mixture of experts."),
    "human": (["are you human", "are you a human", "are you a person", "are you a robot", "are you real", "are you an AI",
               "am I talking to a machine", "are you a computer", "are you alive", "do you have feelings", "can you think"],
              "A question about what I am.", "I am a program: a very small language model."),
    "thanks": (["thanks", "thank you", "thank you very much", "thanks a lot", "many thanks", "great, thanks", "cool, thank you",
                "that helps, thanks", "nice work", "well done", "good job", "perfect", "great", "awesome", "very good"],
               "The user is pleased.", "You are welcome!"),
    "bye": (["bye", "goodbye", "see you", "see you later", "good night", "bye bye", "that is all", "I have to go", "farewell",
             "talk to you later"],
            "The user is leaving.", "Goodbye!"),
    "fathom": (["what is Fathom", "tell me about Fathom", "what does Fathom do", "explain Fathom", "what is the Fathom server",
                "what is Fathom for", "who is Fathom"],
               "A question about Fathom.",
               "Fathom is an open server for mixture-of-experts language models like DeepSeek-V3. I am its demo model."),
    "think": (["how do you work", "how do you calculate", "how do you compute", "how do you add numbers", "how do you multiply",
               "do you use a calculator", "show me how you work", "why do you think first", "what is the thinking for"],
              "A question about my method.", "I write the working digit by digit while I think, then I state the result."),
    "joke": (["tell me a joke", "say something funny", "make me laugh", "do you know a joke", "another joke", "be funny"],
             "The user wants a joke.", "Why was six afraid of seven? Because seven eight nine."),
    "yes": (["ok", "okay", "yes", "I see", "alright", "sure", "understood", "fine", "got it", "right", "hm", "no"],
            "Nothing to work on.", "Good. Which numbers shall I work on?"),
}
TALK_BEFORE = ["", "", "", "hi, ", "hello, ", "hey, ", "ok, ", "please, ", "so, ", "well, ", "hi! ", "hello! ", "now, ", "and ",
               "by the way, ", "one question: "]
TALK_AFTER = ["", "", "", ", please", ", Fathom", ", my friend", " now", " today", ", dear model", ", little model", " then"]

# Wordings that only the last part of the training knows. Held-out small talk has one of them: the first part took two wordings that
# differ in a mark only for two, so of its wordings none is certainly new.
TALK_BEFORE_LATE = ["good morning, ", "excuse me, ", "hey there, ", "sorry, but ", "just asking: ", "quick one: ", "listen, ", "honestly, ",
                    "oh, ", "dear Fathom, ", "let me ask: ", "hello again, "]
TALK_AFTER_LATE = [", if I may ask", ", friend", " again", ", computer", " actually", ", buddy", " right now", ", in a few words", ", I wonder"]

# Requests that are beyond it.
BEYOND = ["write a {x} about {n}", "tell me a {x} about {n}", "what is the capital of {p}", "who is the president of {p}",
          "translate {n} into {g}", "write a {x}", "what is the weather in {p}", "explain {n}", "how does a {n} work",
          "how do I {v} a {n}", "why is the {n} {j}", "where can I find {n}", "what is a {n}", "who invented the {n}",
          "write code to {v} a {n}", "write a function that can {v} {n}", "give me a recipe with {n}", "what do you think about {n}",
          "when was {p} founded", "recommend a {x}", "summarize this {x}", "what is the meaning of {n}", "is the {n} {j}",
          "can you {v} my {n}", "{v} the {n}", "I need a {j} {n}", "how old is the {n}", "what colour is the {n}",
          "tell me about {n}", "tell me about {p}", "what language do they speak in {p}", "how far is {p}", "plan a trip to {p}",
          "what is the news from {p}", "draw a {n}", "sing a {x} about {n}", "what is the best {n}", "fix my {n}",
          "my {n} is {j}, what should I do", "do you like {n}", "tell me the history of {p}", "how many people live in {p}",
          "how many {u}s are in a {t}", "how many {u}s are there in a {t}", "how many {u}s does a {t} have", "how long is a {t}",
          "what {t} is it", "what time is it", "what day is it today", "what is the date today", "how many legs does a {n} have",
          "how many {n}s are there in {p}", "who is the king of {p}", "who won the world cup in {p}", "how tall is the {n}",
          "what is the opposite of {j}", "spell {n}", "how do you say {n} in {g}", "is {p} {j}", "can a {n} {v}", "which is the largest {n}"]
UNITS = ["second", "minute", "hour", "day", "week", "month", "year", "century", "metre", "kilometre", "mile", "gram", "kilogram", "litre",
         "dozen", "cent", "dollar", "inch", "foot", "degree"]
BEYOND_MATH = ["what is {a} / {b}", "what is {a} divided by {b}", "divide {a} by {b}", "compute {a}/{b}", "{a} / {b}", "{a}/{b}",
               "what is the square root of {a}", "what is {a} to the power of {b}", "what is {a}^{b}", "what is {a} percent of {b}",
               "what is {a} mod {b}", "is {a} a prime number", "factor {a}", "what is the logarithm of {a}", "solve x + {a} = {b}",
               "solve {a}x = {b}", "what is the sine of {a}", "what is {a}.{b} + {c}", "what is {a} + {b}.{c}", "compute {a}! ",
               "what is the average of {a} and {b}", "integrate x^{b}", "what is {a}% of {b}", "count to {a}",
               "what is {a} + {b} + {c}", "what is {a} * {b} * {c}", "compute ({a} + {b}) * {c}", "{a} + {b} - {c}"]
# More than two numbers, or one below zero: o and q are operators in one of their forms.
BEYOND_CHAIN = ["{a} {o} {b} {q} {c}", "what is {a} {o} {b} {q} {c}", "{a}{o}{b}{q}{c}", "compute {a} {o} {b} {q} {c}",
                "how much is {a} {o} {b} {q} {c}", "calculate {a} {o} {b} {q} {c}", "what's {a} {o} {b} {q} {c}", "{a} {o} {b} {q} {c} =",
                "work out {a} {o} {b} {q} {c}", "{a} {o} {b} {q} {c} {o} {d}",
                "add {a}, {b} and {c}", "add {a} and {b} and {c}", "sum {a}, {b} and {c}", "what is the sum of {a}, {b} and {c}",
                "multiply {a}, {b} and {c}", "what is the product of {a}, {b} and {c}", "add {a} to {b} and subtract {c}",
                "subtract {a} and {b} from {c}", "multiply {a} by {b} and add {c}", "compare {a}, {b} and {c}",
                "which is the largest of {a}, {b} and {c}", "which is smaller, {a}, {b} or {c}"]
BEYOND_NEGATIVE = ["-{a} {o} {b}", "what is -{a} {o} {b}", "-{a}{o}{b}", "compute -{a} {o} {b}", "how much is -{a} {o} {b}", "{a} {o} -{b}",
                   "what is {a} {o} -{b}", "{a} {o} (-{b})", "-{a} {o} -{b}", "what is minus {a} {o} {b}", "add -{a} and {b}",
                   "multiply -{a} by {b}", "subtract {b} from -{a}", "which is larger, -{a} or {b}", "sort -{a}, {b}, {c}"]
OPERATORS = [("+", "-"), ("-", "+"), ("+", "+"), ("-", "-"), ("*", "+"), ("+", "*"), ("plus", "minus"), ("minus", "plus"), ("plus", "plus"),
             ("times", "plus"), ("plus", "times"), ("minus", "minus"), ("*", "*"), ("times", "times"), ("x", "+")]
TEXTS = ["poem", "story", "song", "letter", "book", "film", "essay", "speech", "novel", "play", "report", "game", "text", "article",
         "summary", "email", "fairy tale", "haiku", "blog post", "limerick"]
PLACES = ["France", "Germany", "Japan", "Italy", "Spain", "China", "India", "Brazil", "Canada", "Mexico", "Egypt", "Kenya", "Norway",
          "Poland", "Peru", "Chile", "London", "Paris", "Berlin", "Rome", "Tokyo", "Madrid", "Vienna", "New York", "Moscow", "Sydney",
          "Africa", "Europe", "Asia", "America", "Greece", "Turkey", "Sweden", "Iceland", "Ireland", "Portugal", "Australia", "Cuba"]
LANGUAGES = ["French", "German", "Spanish", "English", "Chinese", "Japanese", "Latin", "Italian", "Russian", "Greek", "Arabic", "Hindi"]
NOUNS = ["dog", "cat", "horse", "bird", "tree", "flower", "house", "car", "train", "ship", "plane", "engine", "computer", "phone",
         "river", "mountain", "ocean", "sea", "sky", "moon", "sun", "star", "planet", "galaxy", "universe", "rain", "snow", "wind",
         "storm", "fire", "water", "stone", "gold", "silver", "iron", "glass", "paper", "pencil", "table", "window", "door", "garden",
         "kitchen", "bread", "cheese", "soup", "rice", "pasta", "pizza", "coffee", "tea", "wine", "milk", "sugar", "salt", "chocolate",
         "music", "guitar", "piano", "violin", "painting", "museum", "theatre", "football", "chess", "tennis", "bicycle", "hospital",
         "doctor", "teacher", "student", "school", "university", "science", "physics", "chemistry", "biology", "history", "law",
         "economy", "money", "bank", "market", "city", "village", "king", "queen", "soldier", "war", "peace", "love", "friendship",
         "happiness", "time", "dream", "mind", "language", "word", "grammar", "religion", "god", "life", "death", "health", "heart",
         "brain", "eye", "hand", "body", "virus", "vaccine", "robot", "internet", "website", "database", "server", "network",
         "algorithm", "program", "compiler", "keyboard", "printer", "camera", "battery", "clock", "bridge", "road", "airport",
         "hotel", "restaurant", "dinosaur", "elephant", "lion", "tiger", "whale", "spider", "butterfly", "forest", "desert", "island",
         "volcano", "earthquake", "climate", "energy", "electricity", "light", "sound", "atom", "magnet", "rocket", "satellite",
         "quantum computer", "black hole", "steam engine", "washing machine", "string", "array", "file", "number theory"]
VERBS = ["build", "repair", "open", "close", "cook", "draw", "paint", "read", "sell", "buy", "clean", "move", "grow", "find", "break",
         "wash", "plant", "teach", "learn", "print", "copy", "delete", "update", "install", "parse", "reverse", "download", "check"]
ADJECTIVES = ["blue", "red", "green", "big", "small", "old", "new", "fast", "slow", "hot", "cold", "beautiful", "broken", "expensive",
              "cheap", "dangerous", "famous", "round", "dark", "bright", "strong", "empty", "full", "good", "bad"]
SYLLABLES = ["ba", "ko", "ri", "mun", "tel", "sha", "vor", "lin", "dra", "pe", "zu", "qua", "ne", "os", "ti", "gar", "fen", "ly", "ux",
             "wi", "ho", "jan", "cre", "blo", "sti", "ver", "pla", "tion", "ing", "er", "ed", "ment", "al", "ous", "ity", "ish"]
